package elfplan

import (
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"trapless/internal/abi"
	"trapless/internal/image"
	insn "trapless/internal/insn/x86"
	"trapless/internal/plan"
	"trapless/internal/unix"
)

// large binaries, of which the first that is here is planned.
var large = []string{
	"/usr/bin/node", "/usr/lib/gcc/x86_64-linux-gnu/12/cc1", "/usr/bin/python3", "/lib/x86_64-linux-gnu/libc.so.6",
}

// BenchmarkPlan plans 100,000 sites of a large binary on one core, from the open
// file to windows: sites next to each other, and sites in all its functions.
// It reports the processor time per site and the greatest memory of the process
// so far. (Run it with -benchtime 1x for the memory of one file.)
func BenchmarkPlan(b *testing.B) {
	const sites = 100_000
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for _, path := range large {
		if _, err := os.Stat(path); err != nil {
			continue
		}
		b.Run("dense", func(b *testing.B) { benchmarkPlan(b, path, sites, 1<<30) })
		b.Run("spread", func(b *testing.B) { benchmarkPlan(b, path, sites, 2) })
		return
	}
	b.Skip("none of the binaries is here")
}

func benchmarkPlan(b *testing.B, path string, sites, mostOfFunction int) {
	planned := 0
	began := unix.ProcessTime()
	for b.Loop() {
		f, err := os.Open(path)
		if err != nil {
			b.Fatal(err)
		}
		st, err := f.Stat()
		if err != nil {
			b.Fatal(err)
		}
		n, err := planSites(f, st.Size(), sites, mostOfFunction)
		f.Close()
		if err != nil {
			b.Fatal(err)
		}
		planned += n
	}
	b.ReportMetric(float64(unix.ProcessTime()-began)/float64(planned), "cpu-ns/site")
	b.ReportMetric(peakMemory(b), "MB-peak")
	b.ReportMetric(float64(planned)/float64(b.N), "sites")
}

// planSites plans sites of a file, at most so many of each function.
func planSites(f *os.File, size int64, sites, mostOfFunction int) (int, error) {
	m := &Module{Bias: 0}
	var err error
	if m.Image, err = image.New(f, size); err != nil {
		return 0, err
	}
	if m.Funcs, err = m.Image.Functions(); err != nil {
		return 0, err
	}
	facts, err := m.Facts()
	if err != nil {
		return 0, err
	}
	planned := 0
	for _, fn := range m.Funcs.All() {
		if fn.Len() == 0 || planned >= sites {
			continue
		}
		f, err := m.Func(fn)
		if err != nil {
			return 0, err
		}
		if err := m.FindEntries([]*plan.Func{f}); err != nil {
			return 0, err
		}
		p := plan.Prepare(f, facts)
		all := p.Instructions(func(abi.Addr, insn.Inst) bool { return true })
		all = all[:min(len(all), mostOfFunction, sites-planned)]
		p.Together(all)
		planned += len(all)
	}
	return planned, nil
}

// peakMemory is the greatest resident set of this process in megabytes.
func peakMemory(b *testing.B) float64 {
	b.Helper()
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kb, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			if err != nil {
				b.Fatal(err)
			}
			return kb / 1024
		}
	}
	b.Fatal("no VmHWM in /proc/self/status")
	return 0
}
