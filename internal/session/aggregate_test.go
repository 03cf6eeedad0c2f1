package session

import (
	"math/bits"
	"testing"

	"trapless/internal/lang"
	"trapless/internal/testkit"
)

// TestAggregationsAreExact compares what eight threads aggregate, among them
// some that share a slot, with what the target has counted itself.
func TestAggregationsAreExact(t *testing.T) {
	const threads = 8
	p := testkit.Busy(t, threads)
	at := "uprobe:" + exe(t, p.Pid()) + ":work_push"
	s, r := attach(t, p.Pid(), at+` {
		@avg = avg(arg1); @stats = stats(arg1); @max = max(arg0); @min = min(-(int64)arg1);
		@hist = hist(arg1); @fine = hist(arg1, 3); @linear = lhist(arg0, 0, 10, 2); @const = hist(7);
		@max_of[arg0] = max(arg1); @hist_of[arg0] = hist(arg1); @avg_of[arg0] = avg(arg1);
	}`)
	run(t, p, 50000, "work_push", threads)
	finish(t, s)
	want, err := p.Counts("work_push")
	if err != nil {
		t.Fatal(err)
	}
	size := func(key int64) uint64 { return 16 << (key & 7) }
	infos := map[string]*lang.Map{}
	for i := range s.config.Script.Maps {
		infos[s.config.Script.Maps[i].Name] = &s.config.Script.Maps[i]
	}
	whole := func(name string) []uint64 {
		if len(r.maps[name]) != 1 {
			t.Fatalf("%s: %v", name, r.maps[name])
		}
		return r.maps[name][0].Value
	}
	value := func(name string) uint64 { return infos[name].Value(whole(name)) }

	largest, total, sizes := int64(0), uint64(0), uint64(0)
	hist, linear := map[int]uint64{}, map[int]uint64{}
	for key, n := range want.Keys {
		largest, total, sizes = max(largest, key), total+n, max(sizes, size(key))
		hist[bits.Len64(size(key))] += n
		linear[1+int(min(key, 10)/2)] += n
	}
	for _, c := range []struct {
		name string
		want uint64
	}{
		{"@avg", want.Sizes / total}, {"@stats", want.Sizes / total}, {"@max", uint64(largest)}, {"@min", -sizes},
		{"@hist", total}, {"@fine", total}, {"@linear", total}, {"@const", total},
	} {
		if got := value(c.name); got != c.want {
			t.Errorf("%s is %d, want %d", c.name, int64(got), int64(c.want))
		}
	}
	if st := whole("@stats"); st[0] != total || st[1] != want.Sizes {
		t.Errorf("stats: %v, want %d values, %d in all", st, total, want.Sizes)
	}
	for bucket, n := range hist {
		if got := whole("@hist")[bucket]; got != n {
			t.Errorf("bucket %d of hist(): %d, want %d", bucket, got, n)
		}
	}
	for bucket, n := range linear {
		if got := whole("@linear")[bucket]; got != n {
			t.Errorf("bucket %d of lhist(): %d, want %d", bucket, got, n)
		}
	}
	for _, name := range []string{"@max_of", "@hist_of", "@avg_of"} {
		if len(r.maps[name]) != len(want.Keys) {
			t.Errorf("%s has %d keys, want %d", name, len(r.maps[name]), len(want.Keys))
		}
		for _, e := range r.maps[name] {
			key := int64(e.Key[0])
			wanted := size(key)
			if name == "@hist_of" {
				wanted = want.Keys[key]
			}
			if got := infos[name].Value(e.Value); got != wanted {
				t.Errorf("%s[%d] is %d, want %d", name, key, got, wanted)
			}
		}
	}
}

// TestViewOfExtremes: after clear and zero a map of max() begins anew.
func TestViewOfExtremes(t *testing.T) {
	p := testkit.Busy(t, 1)
	s, r := attach(t, p.Pid(), "uprobe:"+exe(t, p.Pid())+`:work { @m = max(arg0); @n = max(arg0); @h = hist(arg0) }`)
	run(t, p, 1000, "work", 1)
	for i := range s.config.Script.Maps {
		kind := lang.Clear
		if s.config.Script.Maps[i].Name == "@n" {
			kind = lang.Zero
		}
		s.reset(i, kind)
		if got := len(s.Entries(i)); got != 0 != (kind == lang.Zero) {
			t.Errorf("%s: %d entries after %s", s.config.Script.Maps[i].Name, got, kind)
		}
	}
	run(t, p, 1, "work", 1) // the first key is 0
	finish(t, s)
	for i := range s.config.Script.Maps {
		m := &s.config.Script.Maps[i]
		want := uint64(0)
		if m.Agg == lang.Hist {
			want = 1
		}
		if got := r.maps[m.Name]; len(got) != 1 || m.Value(got[0].Value) != want {
			t.Errorf("%s: %v, want %d", m.Name, got, want)
		}
	}
}
