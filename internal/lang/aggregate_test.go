package lang

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// someValue is often near a power of two, or small.
func someValue(r *rand.Rand) uint64 {
	switch r.IntN(4) {
	case 0:
		return uint64(r.IntN(40)) - 8
	case 1:
		return uint64(1)<<r.IntN(64) + uint64(r.IntN(3)) - 1
	}
	return r.Uint64() >> r.IntN(64)
}

// histOracle is the definition of hist(): shifts the value down to its highest
// k+1 bits. The bucket of values below zero is the last here.
func histOracle(v int64, k int) int {
	if v < 0 {
		return (64 - k) << k
	}
	shifts := 0
	for ; v>>shifts >= 2<<k; shifts++ {
	}
	return shifts<<k + int(v>>shifts)
}

func lhistOracle(v, low, high, step int64) int {
	if v < low {
		return 0
	}
	return 1 + int((min(v, high)-low)/step)
}

// TestBuckets counts random values, given as an argument and as a constant.
func TestBuckets(t *testing.T) {
	type row struct {
		call string
		want func(int64) int
	}
	var rows []row
	for k := range 6 {
		rows = append(rows, row{fmt.Sprintf("hist(%%s, %d)", k), func(v int64) int { return histOracle(v, k) }})
	}
	rows = append(rows, row{"hist(%s)", func(v int64) int { return histOracle(v, 0) }})
	for _, l := range [][3]int64{
		{0, 10, 2}, {0, 10, 3}, {0, 1000, 1}, {5, 5000, 7}, {0, 1 << 20, 1 << 12}, {3, 1<<40 + 5, 1 << 32}, {0, math.MaxInt64, math.MaxInt64 / 900},
		{1 << 33, 1<<33 + 1000, 10}, {0, 999_999_999, 1_000_003}, {7, 5_000_000_000, 5_000_011},
	} {
		rows = append(rows, row{fmt.Sprintf("lhist(%%s, %d, %d, %d)", l[0], l[1], l[2]), func(v int64) int { return lhistOracle(v, l[0], l[1], l[2]) }})
	}
	r := rand.New(rand.NewPCG(1, 5))
	for _, row := range rows {
		script := "uprobe:a:f { @ = " + fmt.Sprintf(row.call, "arg0") + "; @keyed[arg1] = " + fmt.Sprintf(row.call, "arg0") + " }"
		b := newBench(t, script, Options{MaxMapKeys: 4})
		for range 500 {
			v := someValue(r)
			want := row.want(int64(v))
			before := b.cell(0, 8*want)
			b.run(0, v, 1)
			if got := b.cell(0, 8*want); got != before+1 {
				t.Fatalf("%s of %d: bucket %d was not counted\n%s", row.call, int64(v), want, b.script.Probes[0].Prog)
			}
			if got := b.script.Maps[0].Buckets.Of(int64(v)); got != want {
				t.Fatalf("%s of %d as a constant: bucket %d, want %d", row.call, int64(v), got, want)
			}
		}
		if n := b.script.Maps[0].Value(b.words(0)); n != 500 {
			t.Errorf("%s: %d values counted", row.call, n)
		}
	}
	b := newBench(t, "begin { @h = hist(70); @l = lhist(70, 0, 100, 10) }", Options{})
	if b.run(0); b.cell(0, 8*histOracle(70, 0)) != 1 || b.cell(1, 8*lhistOracle(70, 0, 100, 10)) != 1 {
		t.Error("constants were not counted")
	}
}

// words is the tracer's cell of a map without keys.
func (b *bench) words(m int) []uint64 {
	var out []uint64
	for off := 0; off < b.script.Maps[m].Spec.ValueSize; off += 8 {
		out = append(out, b.cell(m, off))
	}
	return out
}

func TestExtremesAndAverages(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 5))
	for range 200 {
		signed := r.IntN(2) == 0
		arg := "arg0"
		if signed {
			arg = "(int64)arg0"
		}
		less := func(a, b uint64) bool { return signed && int64(a) < int64(b) || !signed && a < b }
		// The maps' numbers are in the order of their names.
		b := newBench(t, fmt.Sprintf("uprobe:a:f { @a = avg(%[1]s); @b = stats(%[1]s); @c = min(%[1]s); @d = max(%[1]s); @e[arg1] = max(%[1]s) }", arg), Options{MaxMapKeys: 4})
		var least, most, total uint64
		n := 1 + r.IntN(6)
		for i := range n {
			v := someValue(r)
			if i == 0 || less(v, least) {
				least = v
			}
			if i == 0 || less(most, v) {
				most = v
			}
			total += v
			b.run(0, v, 3)
		}
		average := total / uint64(n)
		if signed {
			average = uint64(int64(total) / int64(n))
		}
		for m, want := range []uint64{average, average, least, most} {
			if got := b.script.Maps[m].Value(b.words(m)); got != want {
				t.Fatalf("%s of %d values: %d, want %d\n%s", b.script.Maps[m].Agg, n, int64(got), int64(want), b.script.Probes[0].Prog)
			}
		}
	}
	b := newBench(t, "begin { @a = max(-5); @a = max(-7); @b = min(3); @b = min(1); @b = min(2) }", Options{})
	b.run(0)
	if a, c := b.script.Maps[0].Value(b.words(0)), b.script.Maps[1].Value(b.words(1)); int64(a) != -5 || c != 1 {
		t.Errorf("constants: %d and %d", int64(a), int64(c))
	}
}
