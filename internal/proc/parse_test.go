package proc

import (
	"cmp"
	"os"
	"slices"
	"strings"
	"testing"

	"trapless/internal/abi"
)

func TestParseMaps(t *testing.T) {
	for _, c := range []struct {
		line string
		want Mapping
		text string // what Perm prints
	}{
		{"55d0c0a00000-55d0c0a21000 r-xp 00002000 fd:01 1234567                    /usr/bin/a b",
			Mapping{Range: abi.Range{Start: 0x55d0c0a00000, End: 0x55d0c0a21000}, Perm: Read | Exec, Offset: 0x2000,
				Major: 0xfd, Minor: 1, Inode: 1234567, Path: "/usr/bin/a b"}, "r-xp"},
		{"7f0000000000-7f0000001000 rw-s 00000000 00:01 2056                       /memfd:trapless (deleted)",
			Mapping{Range: abi.Range{Start: 0x7f0000000000, End: 0x7f0000001000}, Perm: Read | Write | Shared,
				Minor: 1, Inode: 2056, Path: "/memfd:trapless", Deleted: true}, "rw-s"},
		{"7f0000000000-7f0000001000 ---p 00000000 00:00 0 ",
			Mapping{Range: abi.Range{Start: 0x7f0000000000, End: 0x7f0000001000}}, "---p"},
		{"7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0                          [stack]",
			Mapping{Range: abi.Range{Start: 0x7ffc00000000, End: 0x7ffc00021000}, Perm: Read | Write, Path: "[stack]"}, "rw-p"},
		{"00400000-00401000 r--p 00000000 08:02 7                                  /tmp/new\\012line",
			Mapping{Range: abi.Range{Start: 0x400000, End: 0x401000}, Perm: Read, Major: 8, Minor: 2, Inode: 7, Path: "/tmp/new\nline"}, "r--p"},
		{"ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]",
			Mapping{Range: abi.Range{Start: 0xffffffffff600000, End: 0xffffffffff601000}, Perm: Exec, Path: "[vsyscall]"}, "--xp"},
	} {
		ms, err := ParseMaps(c.line + "\n")
		if err != nil || len(ms) != 1 || ms[0] != c.want || ms[0].Perm.String() != c.text {
			t.Errorf("%q: %+v, %v", c.line, ms, err)
		}
	}
	for _, bad := range []string{"x", "1-2", "2000-1000 r--p 0 0:0 0", "1000-1000 r--p 0 0:0 0", "g-h r--p 0 0:0 0"} {
		if ms, err := ParseMaps(bad); err == nil {
			t.Errorf("%q: %+v", bad, ms)
		}
	}
}

func mapping(start, end abi.Addr) Mapping { return Mapping{Range: abi.Range{Start: start, End: end}} }

func TestGaps(t *testing.T) {
	ms := Maps{mapping(10, 20), mapping(20, 30), mapping(50, 60)}
	for _, c := range []struct {
		lo, hi abi.Addr
		want   []abi.Range
	}{
		{0, 100, []abi.Range{{Start: 0, End: 10}, {Start: 30, End: 50}, {Start: 60, End: 100}}},
		{15, 55, []abi.Range{{Start: 30, End: 50}}},
		{30, 50, []abi.Range{{Start: 30, End: 50}}},
		{35, 40, []abi.Range{{Start: 35, End: 40}}},
		{10, 30, nil},
		{70, 80, []abi.Range{{Start: 70, End: 80}}},
	} {
		if got := ms.Gaps(c.lo, c.hi); !slices.Equal(got, c.want) {
			t.Errorf("between %d and %d: %v, want %v", c.lo, c.hi, got, c.want)
		}
	}
	for a, want := range map[abi.Addr]int{9: -1, 10: 0, 19: 0, 20: 1, 30: -1, 49: -1, 50: 2, 59: 2, 60: -1} {
		m := ms.Find(a)
		if (m == nil) != (want < 0) || m != nil && *m != ms[want] {
			t.Errorf("at %d: %v", a, m)
		}
	}
	if ms.Free(abi.Range{Start: 25, End: 35}) || !ms.Free(abi.Range{Start: 30, End: 50}) || ms.Bytes() != 30 {
		t.Error("Free or Bytes")
	}
}

func TestParseStat(t *testing.T) {
	tail := strings.Repeat(" 0", 40)
	st, err := parseStat("42 (a) R 7 (b) S 1 2 3 4 5 2097152 7 8 9 10 11 12 13 14 15 16 17 18 99" + tail)
	if err != nil || st.State != Sleeping || st.PPid != 1 || !st.KernelThread() || st.StartTime != 99 {
		t.Errorf("%+v, %v", st, err)
	}
	for _, bad := range []string{"", ")", "1 (x)", "1 (x) RR" + tail, "1 (x) R 2 3"} {
		if st, err := parseStat(bad); err == nil {
			t.Errorf("%q: %+v", bad, st)
		}
	}
}

func TestParseStatus(t *testing.T) {
	st := parseStatus("Name:\tmain:x\nState:\tt (tracing stop)\nTgid:\t12\nPPid:\t3\nTracerPid:\t4\n" +
		"Uid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nThreads:\t9\nNSpid:\t12\t1\nVmLck:\t      16 kB\n" +
		"SigPnd:\t0000000000000010\nSigBlk:\t0000000000010000\nSigIgn:\t0000000000001000\nSigCgt:\t8000000000000001\n" +
		"CapEff:\t000001ffffffffff\nSeccomp:\t2\nSeccomp_filters:\t3\nx86_Thread_features:\tshstk wrss \nNonsense\n")
	switch {
	case st.Name != "main:x", st.State != Tracing, st.Tgid != 12, st.PPid != 3, st.TracerPid != 4:
	case st.UID != [4]int{1, 2, 3, 4}, st.GID != [4]int{5, 6, 7, 8}, st.Threads != 9:
	case !slices.Equal(st.NSpid, []int{12, 1}), st.VMLck != 16384, st.CapEff != 0x1ffffffffff:
	case !st.Pending.Has(5), st.Pending.Has(4):
	case !st.Blocked.Has(17), !st.Ignored.Has(13), !st.Caught.Has(1), !st.Caught.Has(64):
	case st.Blocked.Has(16), st.Caught.Has(65), st.Caught.Has(0):
	case st.Seccomp != SeccompFilter, st.SeccompFilters != 3, !st.ShadowStack:
	default:
		return
	}
	t.Errorf("%+v", st)
}

func TestParseLimits(t *testing.T) {
	l := parseLimits("Limit                     Soft Limit           Hard Limit           Units     \n" +
		"Max stack size            8388608              unlimited            bytes     \n" +
		"Max locked memory         65536                65536                bytes     \n" +
		"Max address space         unlimited            unlimited            bytes     \n" +
		"Max open files            1024                 524288               files     \n")
	if l != (Limits{AddressSpace: Unlimited, Stack: 8 << 20, Locked: 65536, Files: 1024}) {
		t.Errorf("%+v", l)
	}
}

// What the kernel says of this very process.
func TestOwnProcess(t *testing.T) {
	pid := os.Getpid()
	ms, err := ReadMaps(pid)
	if err != nil || len(ms) < 5 {
		t.Fatalf("%d mappings, %v", len(ms), err)
	}
	if !slices.IsSortedFunc(ms, func(a, b Mapping) int { return cmp.Compare(a.Start, b.Start) }) {
		t.Error("the mappings are not sorted")
	}
	exe, err := Exe(pid)
	if err != nil || !slices.ContainsFunc(ms, func(m Mapping) bool { return m.Path == exe && m.Perm == Read|Exec }) {
		t.Errorf("%q (%v) is not mapped", exe, err)
	}
	aux, err := Auxv(pid)
	if err != nil || aux[6] != abi.PageSize || ms.Find(abi.Addr(aux[9])) == nil {
		t.Errorf("auxiliary vector %v, %v", aux, err)
	}
	if tids, err := Threads(pid); err != nil || !slices.Contains(tids, pid) {
		t.Errorf("threads %v, %v", tids, err)
	}
	st, err := ReadStatus(pid, pid)
	if err != nil || st.Tgid != pid || st.UID[0] != os.Getuid() || st.PPid != os.Getppid() || st.NSpid[0] != pid {
		t.Errorf("%+v, %v", st, err)
	}
	if ns, err := Namespace(pid, "mnt"); err != nil || !strings.HasPrefix(ns, "mnt:[") {
		t.Errorf("%q, %v", ns, err)
	}
	if s, err := Sharers(pid); err != nil || len(s) != 0 {
		t.Errorf("it shares its memory with %v (%v)", s, err)
	}
	if !HasMemory(pid) {
		t.Error("it has no memory")
	}
}

func FuzzMaps(f *testing.F) {
	f.Add("55d0c0a00000-55d0c0a21000 r-xp 00002000 fd:01 1234567                    /usr/bin/a b\n")
	f.Add("1-2 rwxs 0 0:0 0 [heap]\n3-4 ---p 0 0:0 0\n")
	f.Fuzz(func(t *testing.T, text string) {
		ms, err := ParseMaps(text)
		if err != nil {
			return
		}
		for i := range ms {
			if ms[i].Start >= ms[i].End {
				t.Errorf("%+v", ms[i])
			}
		}
	})
}

func FuzzStatus(f *testing.F) {
	f.Add("Name:\tx\nUid:\t1 2 3 4 5\nState:\t\nNSpid:\t1 x\nVmLck:\n")
	f.Add("1 (x) R 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20")
	f.Fuzz(func(_ *testing.T, text string) {
		parseStatus(text)
		_, _ = parseStat(text)
		parseLimits(text)
	})
}
