package coverage

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"trapless/internal/image"
	"trapless/internal/plan"
	"trapless/internal/testkit"
)

func measure(t *testing.T, path string, sites Sites) *Result {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	r, err := File(context.Background(), path, f, st.Size(), sites)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestEachSiteIsCountedOnce takes objdump as the oracle for how many returns
// there are in the functions of a library.
func TestEachSiteIsCountedOnce(t *testing.T) {
	path := testkit.CompileFile(t, "../plan/testdata/switch.c", testkit.Flags{"-nostartfiles", "-shared", "-fPIC"})
	out, err := exec.Command(testkit.Command(t, "objdump", "binutils"), "-d", "-w", "-j", ".text", path).Output()
	if err != nil {
		t.Fatal(err)
	}
	returns, all := 0, 0
	lines := bufio.NewScanner(bytes.NewReader(out))
	for lines.Scan() {
		fields := strings.Split(lines.Text(), "\t")
		if len(fields) < 3 {
			continue
		}
		all++
		if strings.HasPrefix(fields[2], "ret") {
			returns++
		}
	}
	if r := measure(t, path, Returns); r.N != returns {
		t.Errorf("%d returns; objdump sees %d", r.N, returns)
	}
	if r := measure(t, path, All); r.N > all || r.N < all*3/4 { // objdump also reads what lies between functions
		t.Errorf("%d instructions; objdump sees %d", r.N, all)
	}
}

func TestSumsAgree(t *testing.T) {
	path := testkit.Compile(t, "windows.c")
	for _, sites := range []Sites{Entries, Returns, All} {
		r := measure(t, path, sites)
		planned, refused := 0, 0
		for _, n := range r.ByTactic {
			planned += n
		}
		for _, n := range r.Refused {
			refused += n
		}
		if r.N == 0 || planned+refused != r.N || r.TrapFree != float64(planned-r.ByTactic[plan.Trap])/float64(r.N) || r.DetourBytes < 5 || r.PlanNS <= 0 {
			t.Errorf("%s: %+v", sites, r)
		}
	}
}

func TestJSONKeys(t *testing.T) {
	b, err := json.Marshal(&Result{})
	var keys map[string]any
	if err != nil || json.Unmarshal(b, &keys) != nil {
		t.Fatal(err)
	}
	want := []string{"by_tactic", "detour_bytes_per_site", "file", "n", "plan_ns_per_site", "refused", "sites", "trap_free", "unresolved_switches"}
	if got := slices.Sorted(maps.Keys(keys)); !slices.Equal(got, want) {
		t.Errorf("%v", got)
	}
}

func TestBadInput(t *testing.T) {
	for _, text := range []string{"", "#!/bin/sh\n", "\x7fELF"} {
		if _, err := File(context.Background(), "f", strings.NewReader(text), int64(len(text)), All); !errors.Is(err, image.ErrNotELF) && !errors.Is(err, image.ErrMalformed) {
			t.Errorf("%q: %v", text, err)
		}
	}
	if _, err := Parse("some"); err == nil {
		t.Error("a set of sites of an unknown name")
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	b, err := os.ReadFile(testkit.Compile(t, "windows.c"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := File(ctx, "f", bytes.NewReader(b), int64(len(b)), All); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
