package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"trapless/internal/kuprobe"
	"trapless/internal/testkit"
)

// quick makes runs so short that their figures mean nothing.
func quick(rounds int, variants ...Variant) Options {
	return Options{Variants: variants, Rounds: rounds, Slice: 100 * time.Microsecond}
}

// needCompiler skips the test where busy cannot be built.
func needCompiler(t *testing.T) {
	t.Helper()
	testkit.Compile(t, "busy.c")
}

// recorder makes variants that write down what happens to them.
type recorder struct {
	log  []string
	pids map[int]bool
}

func (r *recorder) variant(name string, threads int) Variant {
	return Variant{Name: name, Threads: threads, Function: "work", Arm: func(pid int) (Armed, error) {
		r.log = append(r.log, "arm "+name)
		r.pids[pid] = true
		return Armed{Disarm: func() error {
			r.log = append(r.log, "disarm "+name)
			if r.pids[pid] && !alive(pid) {
				return errors.New("the process ended before it was disarmed")
			}
			return nil
		}}, nil
	}}
}

func alive(pid int) bool {
	_, err := os.Stat(fmt.Sprintf("/proc/%d", pid))
	return err == nil
}

func TestVariantsTakeTurns(t *testing.T) {
	needCompiler(t)
	r := &recorder{pids: map[int]bool{}}
	report, err := Run(context.Background(), quick(2, r.variant("a", 1), r.variant("b", 2)))
	if err != nil {
		t.Fatal(err)
	}
	want := "arm a, disarm a, arm b, disarm b, arm a, disarm a, arm b, disarm b"
	if got := strings.Join(r.log, ", "); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if len(report.Rows) != 2 || report.Rows[1].Threads != 2 || report.Rows[1].Rounds != 2 || report.Rows[1].BaseNS <= 0 {
		t.Errorf("rows %+v", report.Rows)
	}
	for pid := range r.pids {
		if alive(pid) {
			t.Errorf("process %d was left behind", pid)
		}
	}
}

func TestVariantThatCannotBeArmedIsSkipped(t *testing.T) {
	needCompiler(t)
	r := &recorder{pids: map[int]bool{}}
	attempts := 0
	refuse := Variant{Name: "refused", Threads: 1, Function: "work", Arm: func(int) (Armed, error) {
		attempts++
		return Armed{}, errors.New("no such luck")
	}}
	report, err := Run(context.Background(), quick(3, refuse, r.variant("a", 1)))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]Skip{{"refused", 1, "no such luck"}}, report.Skipped); diff != "" || attempts != 1 {
		t.Errorf("%d attempts; skipped (-want +got):\n%s", attempts, diff)
	}
	if len(report.Rows) != 1 || report.Rows[0].Rounds != 3 {
		t.Errorf("rows %+v, want a with 3 rounds", report.Rows)
	}
}

func TestFailures(t *testing.T) {
	needCompiler(t)
	fine := func() error { return nil }
	for _, row := range []struct {
		name     string
		function string
		armed    Armed
		want     string
	}{
		{"counts wrong", "work", Armed{Hits: func() (uint64, error) { return 7, nil }, Disarm: fine}, "counted as 7"},
		{"cannot say", "work", Armed{Hits: func() (uint64, error) { return 0, errors.New("lost") }, Disarm: fine}, "lost"},
		{"does not come off", "work", Armed{Disarm: func() error { return errors.New("stuck") }}, "stuck"},
		{"no such function", "play", Armed{Disarm: fine}, "no such function"},
	} {
		v := Variant{Name: row.name, Threads: 1, Function: row.function, Arm: func(int) (Armed, error) { return row.armed, nil }}
		_, err := Run(context.Background(), quick(1, v))
		if err == nil || !strings.Contains(err.Error(), row.want) || !strings.Contains(err.Error(), row.name) {
			t.Errorf("%s: %v, want %q", row.name, err, row.want)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Run(ctx, quick(1)); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled before it began: %v", err)
	}
}

func TestUprobesCountWhatIsCalled(t *testing.T) {
	needCompiler(t)
	report, err := Run(context.Background(), quick(1, append(Uprobes(1), Uprobes(2)...)...))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range report.Skipped {
		if !strings.Contains(s.Reason, kuprobe.ErrNotPermitted.Error()) && !strings.Contains(s.Reason, kuprobe.ErrUnsupported.Error()) {
			t.Errorf("skipped %s: %s", s.Name, s.Reason)
		}
	}
	if len(report.Rows)+len(report.Skipped) != 6 {
		t.Errorf("%d rows and %d skipped, want 6 in all", len(report.Rows), len(report.Skipped))
	}
	for _, row := range report.Rows {
		if row.NetNS <= 0 || row.Name == Reference && row.XUprobe != 1 {
			t.Errorf("%+v: a trap that costs nothing, or less than itself", row)
		}
	}
}

func TestMedian(t *testing.T) {
	for _, row := range []struct {
		values []float64
		want   float64
	}{
		{[]float64{3}, 3},
		{[]float64{1, 2}, 1.5},
		{[]float64{9, 1, 2}, 2},
		{[]float64{4, 1, 3, 2}, 2.5},
		{[]float64{-1, 1000, 0, 0, 0}, 0},
	} {
		if got := median(row.values); got != row.want {
			t.Errorf("median %v = %v, want %v", row.values, got, row.want)
		}
	}
}

// example is a report of fixed figures.
func example() *Report {
	variants := []Variant{
		{Name: "count", Threads: 1}, {Name: Reference, Threads: 1}, {Name: "nothing", Threads: 1},
		{Name: "count", Threads: 2}, {Name: "uprobe-mov", Threads: 1},
	}
	samples := [][]sample{
		{{2, 4.25}, {2, 4}, {2, 5}}, {{2.5, 902.5}, {2.5, 1002.5}, {2.5, 952.5}}, {{2, 1.95}},
		{{2, 4}}, nil,
	}
	r := newReport(variants, samples, []error{nil, nil, nil, nil, errors.New("not permitted")})
	r.Machine = Machine{CPU: "A CPU", CPUs: 2, Kernel: "6.18.0", Hypervisor: true, Arch: "amd64", TSC: 18.5}
	return r
}

func TestReportAsText(t *testing.T) {
	const want = `A CPU, 2 CPUs, Linux 6.18.0, virtual, 18.5 ns to read the time stamp counter

       variant   threads   net ns      min       max   faster than uprobe-push   than bpftrace
         count         1     2.25     2.00      3.00                     422 x               -
   uprobe-push         1   950.00   900.00   1000.00                       1 x               -
       nothing         1    -0.05    -0.05     -0.05                    9500 x               -
         count         2     2.00     2.00      2.00                         -               -

net: CPU time by which a call is longer when it is probed; median, least and greatest of the rounds
skipped uprobe-mov with 1 threads: not permitted
`
	var got strings.Builder
	if err := example().WriteText(&got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestReportAsJSON(t *testing.T) {
	var text strings.Builder
	if err := example().WriteJSON(&text); err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal([]byte(text.String()), &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"machine": map[string]any{"cpu": "A CPU", "cpus": 2.0, "kernel": "6.18.0", "hypervisor": true, "arch": "amd64", "tsc_ns": 18.5},
		"rows": []any{
			map[string]any{"name": "count", "threads": 1.0, "net_ns": 2.25, "min_ns": 2.0, "max_ns": 3.0, "base_ns": 2.0, "rounds": 3.0, "x_uprobe_push": 422.22},
			map[string]any{"name": "uprobe-push", "threads": 1.0, "net_ns": 950.0, "min_ns": 900.0, "max_ns": 1000.0, "base_ns": 2.5, "rounds": 3.0, "x_uprobe_push": 1.0},
			map[string]any{"name": "nothing", "threads": 1.0, "net_ns": -0.05, "min_ns": -0.05, "max_ns": -0.05, "base_ns": 2.0, "rounds": 1.0, "x_uprobe_push": 9500.0},
			map[string]any{"name": "count", "threads": 2.0, "net_ns": 2.0, "min_ns": 2.0, "max_ns": 2.0, "base_ns": 2.0, "rounds": 1.0},
		},
		"skipped": []any{map[string]any{"name": "uprobe-mov", "threads": 1.0, "reason": "not permitted"}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestMachineFromCPUInfo(t *testing.T) {
	var m Machine
	m.readCPUInfo("processor\t: 0\nmodel name\t: A CPU @ 3 GHz\nflags\t\t: fpu hypervisor lahf_lm\n\nprocessor\t: 1\nmodel name\t: B\n")
	if want := (Machine{CPU: "A CPU @ 3 GHz", Hypervisor: true}); m != want {
		t.Errorf("%+v, want %+v", m, want)
	}
}
