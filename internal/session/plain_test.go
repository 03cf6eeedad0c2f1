package session

import (
	"fmt"
	"os"
	"testing"

	"trapless/internal/lang"
	"trapless/internal/testkit"
)

// TestPlainMapsInTheTarget: durations by the idiom that people use, and numbers
// that many threads count in maps that they share.
func TestPlainMapsInTheTarget(t *testing.T) {
	for _, threads := range []int{1, 8} {
		p := testkit.Busy(t, threads)
		f := exe(t, p.Pid()) + ":work_push"
		s, r := attach(t, p.Pid(), "uprobe:"+f+` {
				@start[tid] = nsecs; @calls++; @keys[arg0]++; @sizes += arg1; @last = arg0; @tids[tid] = true; @who[uid, gid] = 1;
				@key[tid] = arg0; @cpus[cpu]++
			}
			uretprobe:`+f+` /@start[tid]/ {
				@latency = hist(nsecs - @start[tid]); @ended = count(); @of[@key[tid]] = count();
				delete(@start[tid]);
			}
			interval:ms:10 { @ticks++ }`)
		run(t, p, 20000, "work_push", threads)
		finish(t, s)
		want, err := p.Counts("work_push")
		if err != nil {
			t.Fatal(err)
		}
		maps := map[string]*lang.Map{}
		for i := range s.config.Script.Maps {
			maps[s.config.Script.Maps[i].Name] = &s.config.Script.Maps[i]
		}
		total := func(name string) (n uint64) {
			for _, e := range r.maps[name] {
				n += maps[name].Value(e.Value)
			}
			return n
		}
		for _, c := range []struct {
			name          string
			total         uint64
			entries, most int
		}{
			{"@calls", want.Calls, 1, 1}, {"@sizes", want.Sizes, 1, 1}, {"@keys", want.Calls, len(want.Keys), len(want.Keys)},
			{"@ended", want.Calls, 1, 1}, {"@latency", want.Calls, 1, 1}, {"@of", want.Calls, len(want.Keys), len(want.Keys)},
			{"@tids", uint64(threads), threads, threads}, {"@who", 1, 1, 1}, {"@start", 0, 0, 0}, {"@cpus", want.Calls, 1, 1 << 12},
		} {
			if n := len(r.maps[c.name]); n < c.entries || n > c.most || total(c.name) != c.total {
				t.Errorf("%d threads: %s has %d entries, %d in all; want %d, %d", threads, c.name, n, total(c.name), c.entries, c.total)
			}
		}
		for _, e := range r.maps["@of"] {
			if n := want.Keys[int64(e.Key[0])]; n != maps["@of"].Value(e.Value) {
				t.Errorf("@of[%d] is %d, want %d", e.Key[0], maps["@of"].Value(e.Value), n)
			}
		}
		for _, e := range r.maps["@who"] {
			if e.Key[0] != uint64(os.Getuid()) || e.Key[1] != uint64(os.Getgid()) {
				t.Errorf("the target is user and group %d", e.Key)
			}
		}
		tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", p.Pid()))
		if err != nil {
			t.Fatal(err)
		}
		names := map[string]bool{}
		for _, d := range tasks {
			names[d.Name()] = true
		}
		for _, e := range r.maps["@tids"] {
			if !names[fmt.Sprint(e.Key[0])] {
				t.Errorf("there is no thread %d", e.Key[0])
			}
		}
	}
}

// TestViewOfPlainMaps: clear removes entries, zero keeps them.
func TestViewOfPlainMaps(t *testing.T) {
	p := testkit.Busy(t, 1)
	s, _ := attach(t, p.Pid(), "uprobe:"+exe(t, p.Pid())+`:work { @a = arg1; @b[arg0] = arg1; @c = arg1; @d[arg0] = arg1; @never[arg0] = 1; if (arg1 == 0) { @unset = 1 } }`)
	run(t, p, 1000, "work", 1)
	for i := range s.config.Script.Maps {
		m := &s.config.Script.Maps[i]
		before := len(s.Entries(i))
		if (before == 0) != (m.Name == "@unset") {
			t.Errorf("%s has %d entries", m.Name, before)
		}
		kind, left := lang.Clear, 0
		if m.Name == "@c" || m.Name == "@d" {
			kind, left = lang.Zero, before
		}
		s.reset(i, kind)
		after := s.Entries(i)
		if len(after) != left {
			t.Errorf("%s has %d entries after %s, want %d", m.Name, len(after), kind, left)
		}
		for _, e := range after {
			if m.Value(e.Value) != 0 {
				t.Errorf("%s is %d after %s", m.Name, m.Value(e.Value), kind)
			}
		}
	}
	run(t, p, 10, "work", 1)
	for i := range s.config.Script.Maps {
		if m := &s.config.Script.Maps[i]; m.Name != "@unset" && len(s.Entries(i)) == 0 {
			t.Errorf("%s has no entries any more", m.Name)
		}
	}
	finish(t, s)
}
