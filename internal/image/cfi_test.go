package image

import (
	"fmt"
	"os/exec"
	"sort"
	"strconv"
	"strings"
	"testing"

	"trapless/internal/abi"
	"trapless/internal/testkit"
)

// ruleAt is the rule that holds at an address.
func ruleAt(rows []UnwindRow, v VAddr) abi.UnwindRule {
	i := sort.Search(len(rows), func(i int) bool { return rows[i].Start > v }) - 1
	if i < 0 {
		return 0
	}
	return rows[i].Rule
}

// said is a rule as readelf says it: "rsp+16 rbp=c-16". Expressions are "exp".
func said(r abi.UnwindRule) string {
	bp, saved := r.BP()
	text := ""
	switch r.Kind() {
	case abi.UnwindSP:
		text = fmt.Sprintf("rsp+%d", r.Offset())
	case abi.UnwindBP:
		text = fmt.Sprintf("rbp+%d", r.Offset())
	case abi.UnwindAtBP, abi.UnwindAtSP, abi.UnwindStub, abi.UnwindSignal:
		text = "exp"
	case abi.UnwindEnd:
		return "end"
	case abi.UnwindRefused:
		return "refused"
	}
	switch {
	case saved:
		return text + fmt.Sprintf(" rbp=c%+d", bp)
	case r&abi.UnwindBPAtBP != 0 || r.Kind() == abi.UnwindSignal:
		return text + " rbp=exp"
	}
	return text + " rbp=u"
}

// readelf interprets the same tables in the same way, at each address at which a rule begins.
func TestUnwindRowsAsReadelf(t *testing.T) {
	readelf := testkit.Command(t, "readelf", "binutils")
	for _, path := range []string{"/lib/x86_64-linux-gnu/libc.so.6", "/lib/x86_64-linux-gnu/libstdc++.so.6", testkit.Compile(t, "throws.cpp"),
		testkit.Compile(t, "busy.c", testkit.NoPIE), "/lib64/ld-linux-x86-64.so.2"} {
		out, _ := exec.Command(readelf, "-wF", path).Output() // which fails where there is no separate file with more
		rows, err := open(t, path).UnwindRows()
		if err != nil {
			t.Fatal(err)
		}
		compared, refused, wrong := 0, 0, 0
		var columns []string
		for line := range strings.Lines(string(out)) {
			fields := strings.Fields(line)
			if len(fields) > 1 && fields[0] == "LOC" {
				columns = fields
				continue
			}
			if len(columns) == 0 || len(fields) != len(columns) {
				columns = nil
				continue
			}
			at, err := strconv.ParseUint(fields[0], 16, 64)
			if err != nil || at == 0 { // a CIE's
				continue
			}
			want, ra, bp := fields[1], "c-8", "u"
			for i, c := range columns {
				switch c {
				case "ra":
					ra = fields[i]
				case "rbp":
					bp = strings.Replace(fields[i], "vexp", "exp", 1)
				}
			}
			if bp == "s" {
				bp = "u"
			}
			if want = want + " rbp=" + bp; ra == "u" {
				want = "end"
			}
			compared++
			got := said(ruleAt(rows, VAddr(at)))
			switch {
			case got == "refused":
				refused++
			case got != want:
				if wrong++; wrong < 10 {
					t.Errorf("%s at %#x: %q, readelf says %q (ra %s)", path, at, got, want, ra)
				}
			}
		}
		t.Logf("%s: %d rows, %d compared, %d refused, %d wrong", path, len(rows), compared, refused, wrong)
		if compared < 10 || refused > compared/200 {
			t.Errorf("%s: %d of %d are refused", path, refused, compared)
		}
	}
}

// Whatever the instructions are, running them ends with rows in ascending order.
func FuzzUnwindRows(f *testing.F) {
	f.Add([]byte{0x0c, 7, 8, 0x90, 1}, []byte{0x41, 0x0e, 16, 0x86, 2, 0x43, 0x0d, 6, 0x02, 9, 0x0c, 7, 8})
	f.Add([]byte{0x0f, 3, 0x76, 0x78, 6}, []byte{0x0a, 0x0b, 0x10, 6, 2, 0x76, 0, 0x2e, 8})
	f.Fuzz(func(t *testing.T, initial, code []byte) {
		m := frameMachine{cie: &frameCIE{code: 1, data: -8, initial: initial, ok: true}, loc: 0x1000, end: 0x2000}
		m.run(initial)
		m.initial, m.out = m.state, nil
		m.run(code)
		m.flush()
		for i, row := range m.out {
			if row.Start < 0x1000 || row.Start > 0x2000 || i > 0 && m.out[i-1].Start >= row.Start {
				t.Fatalf("%v", m.out)
			}
		}
	})
}
