package lang

import (
	"fmt"
	"strings"
	"testing"

	"trapless/internal/abi"
	"trapless/internal/usdt"
)

// TestHotPrograms fixes the code of the programs that run most: an instruction
// more is paid at every hit.
func TestHotPrograms(t *testing.T) {
	for _, row := range []struct{ body, want string }{
		{"@ = count()", `
			StMemW dst: rfp src: r0 off: -8 imm: 0
			LoadMapPtr dst: r1 fd: 0
			MovReg dst: r2 src: rfp
			AddImm dst: r2 imm: -8
			Call BuiltinFunc(65537)
			MovImm dst: r1 imm: 1
			StXAtomicAddDW dst: r0 src: r1 off: 0
			Exit`},
		{"@[arg0] = count()", `
			LdXMemDW dst: r2 src: r1 off: 168 imm: 0
			StXMemDW dst: rfp src: r2 off: -8 imm: 0
			LoadMapPtr dst: r1 fd: 0
			MovReg dst: r2 src: rfp
			AddImm dst: r2 imm: -8
			Call BuiltinFunc(65537)
			JEqImm dst: r0 off: 2 imm: 0
			MovImm dst: r1 imm: 1
			StXAtomicAddDW dst: r0 src: r1 off: 0
			MovImm dst: r0 imm: 0
			Exit`},
		{"@ = sum(arg1)", `
			StMemW dst: rfp src: r0 off: -8 imm: 0
			LdXMemDW dst: r6 src: r1 off: 176 imm: 0
			LoadMapPtr dst: r1 fd: 0
			MovReg dst: r2 src: rfp
			AddImm dst: r2 imm: -8
			Call BuiltinFunc(65537)
			MovImm dst: r1 imm: 1
			StXAtomicAddDW dst: r0 src: r1 off: 0
			StXAtomicAddDW dst: r0 src: r6 off: 8
			Exit`},
		{"", `
			MovImm dst: r0 imm: 0
			Exit`},
	} {
		s := mustCompile(t, "uprobe:a:f { "+row.body+" }", Options{})
		var got []string
		for _, in := range s.Probes[0].Prog.Insns {
			got = append(got, fmt.Sprint(in))
		}
		want := strings.Split(strings.ReplaceAll(strings.TrimSpace(row.want), "\t", ""), "\n")
		if strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Errorf("%s\ngot\n%s\nwant\n%s", row.body, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

// TestPredicateComesFirst: a probe whose predicate is false does no more than
// the test.
func TestPredicateComesFirst(t *testing.T) {
	s := mustCompile(t, "uprobe:a:f /arg0 == 5/ { @[arg1] = count() }", Options{})
	insns := s.Probes[0].Prog.Insns
	if got := fmt.Sprint(insns[1].OpCode.JumpOp()); got != "JNE" {
		t.Errorf("second instruction is %v", insns[1])
	}
}

// The call that a value makes destroys the register with the arguments, which a key reads later.
func TestKeysOfArgumentsAndValuesOfCalls(t *testing.T) {
	for _, body := range []string{"@[arg0] = sum(rand)", "@[arg0] = rand", "@[arg0, rand] = max(arg1)", "@[arg0] = tseries(rand, 1s, 5)", "@[rand] = tseries(arg1, 1s, 5)"} {
		p := mustCompile(t, "uprobe:a:f { "+body+" }", Options{}).Probes[0].Prog
		if _, err := usdt.Verify(p); err != nil {
			t.Errorf("%s: %v", body, err)
		}
	}
}

func TestMapSpecs(t *testing.T) {
	s := mustCompile(t, `config = { max_map_keys = 100 } let @d = percpuhash(7); let @unused = percpuhash(9);
		begin { @n = count(); @k[1] = sum(1); @d[1, 2] = count(); @d[1, 3] = count(); print(@k) }`, Options{MaxMapKeys: 50})
	want := []abi.MapSpec{
		{Name: "@d", Kind: abi.PerSlotHash, KeySize: 16, ValueSize: 8, MaxEntries: 7},
		{Name: "@k", Kind: abi.PerSlotHash, KeySize: 8, ValueSize: 16, MaxEntries: 100},
		{Name: "@n", Kind: abi.PerSlotArray, KeySize: 4, ValueSize: 8, MaxEntries: 1},
	}
	if fmt.Sprint(s.MapSpecs()) != fmt.Sprint(want) {
		t.Errorf("got  %+v\nwant %+v", s.MapSpecs(), want)
	}
	if p := s.Probes[0].Prog; len(p.Maps) != len(want) {
		t.Errorf("the program has %d maps", len(p.Maps))
	}
	if d := mustCompile(t, "begin { @k[1] = count() }", Options{}); d.Maps[0].Spec.MaxEntries != DefaultMaxMapKeys {
		t.Errorf("%d entries by default", d.Maps[0].Spec.MaxEntries)
	}
}

func TestSettings(t *testing.T) {
	for _, row := range []struct {
		src  string
		want bool
	}{
		{"begin { }", true}, {"config = { print_maps_on_exit=0 } begin { }", false},
		{"config = { BPFTRACE_PRINT_MAPS_ON_EXIT=false; } begin { }", false}, {"config = {} begin { }", true},
	} {
		if got := mustCompile(t, row.src, Options{}).PrintMapsOnExit; got != row.want {
			t.Errorf("%s: %v", row.src, got)
		}
	}
}

func TestMissingProbes(t *testing.T) {
	for _, row := range []struct {
		src  string
		want MissingProbes
	}{
		{"begin { }", MissingError}, {"config = { missing_probes=ignore } begin { }", MissingIgnore}, {"config = { missing_probes=\"warn\" } begin { }", MissingWarn},
	} {
		if got := mustCompile(t, row.src, Options{}).Missing; got != row.want {
			t.Errorf("%s: %v", row.src, got)
		}
	}
}

// TestEventIsNotTrusted: the ring is in memory that the target can write.
func TestEventIsNotTrusted(t *testing.T) {
	s := mustCompile(t, `uprobe:a:f { printf("%d %d", arg0, (int8)arg1) }`, Options{})
	word := func(v ...uint64) []byte {
		var b []byte
		for _, v := range v {
			for i := range 8 {
				b = append(b, byte(v>>(8*i)))
			}
		}
		return b
	}
	for _, bad := range [][]byte{nil, {1, 2, 3}, word(1, 2, 3), word(^uint64(0), 2, 3), word(0), word(0, 1), word(0, 1, 2, 3), word(0, 1, 2)[:20]} {
		if _, _, err := s.Event(bad); err == nil {
			t.Errorf("event % x was taken", bad)
		}
	}
	_, values, err := s.Event(word(0, 5, 0xffff))
	if err != nil || show(values[0]) != "5" || show(values[1]) != "-1" {
		t.Errorf("values %v, %v", values, err)
	}
}

// longScript is a script of 100 lines and more.
func longScript() string {
	var b strings.Builder
	for i := range 20 {
		fmt.Fprintf(&b, `uprobe:libc:func%d, uprobe:/usr/bin/x:other%d
/arg0 > %d && pid != 1/
{
	$a = (arg0 + arg1 * %d) / 3;
	if ($a > 100) { @big%d[$a, arg2] = count(); } else { @small%d = sum($a - 1); }
	printf("%%d %%llx\n", $a, arg3);
}
`, i, i, i, i, i, i)
	}
	return b.String()
}

func BenchmarkCompile(b *testing.B) {
	src := longScript()
	b.ReportMetric(float64(strings.Count(src, "\n")), "lines")
	for b.Loop() {
		if _, err := Compile(src, "t", Options{}); err != nil {
			b.Fatal(err)
		}
	}
}

func TestLongScript(t *testing.T) {
	for i, p := range mustCompile(t, longScript(), Options{}).Probes {
		if _, err := usdt.Verify(p.Prog); err != nil {
			t.Errorf("probe %d: %v", i, err)
		}
	}
}
