package plan

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"slices"
	"testing"

	"trapless/internal/abi"
	"trapless/internal/testkit"
)

// readOnly gives the functions of a module its data.
func (m *module) readOnly(t *testing.T) {
	t.Helper()
	f, err := elf.Open(m.path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var data []Data
	for _, p := range f.Progs {
		if p.Type != elf.PT_LOAD || p.Flags&elf.PF_W != 0 {
			continue
		}
		b := make([]byte, p.Filesz)
		if _, err := p.ReadAt(b, 0); err != nil {
			t.Fatal(err)
		}
		data = append(data, Data{m.base + abi.Addr(p.Vaddr), b})
	}
	for _, fn := range m.funcs {
		fn.ReadOnly = Constants(data).Read
	}
}

// TestSwitchTables takes gcc as the oracle: with -mcet-switch it begins each
// place to which a table leads, and nothing else inside a function of C, with
// endbr64.
func TestSwitchTables(t *testing.T) {
	names := []string{"plain", "word", "byte", "shifted", "masked", "memory", "after_call", "in_loop"}
	for _, flags := range []testkit.Flags{
		append(testkit.Flags{"-O2"}, testkit.PIE...), append(testkit.Flags{"-O1"}, testkit.PIE...),
		append(testkit.Flags{"-Os"}, testkit.PIE...), append(testkit.Flags{"-O3"}, testkit.NoPIE...),
	} {
		path := testkit.CompileFile(t, "testdata/switch.c", append(testkit.Flags{"-fcf-protection=branch", "-mcet-switch"}, flags...))
		base := abi.Addr(0)
		if slices.Contains(flags, testkit.PIE[0]) {
			base = 0x555555554000
		}
		m := openModule(t, path, base)
		m.readOnly(t)
		known := 0
		for _, f := range m.funcs {
			if !slices.Contains(names, f.Name) {
				continue
			}
			b := read(f)
			if b.unknown != "" {
				t.Logf("%v: %s: %s", flags, f.Name, b.unknown)
				continue
			}
			known++
			got, want := map[int]bool{}, map[int]bool{}
			for _, e := range b.entries {
				if e.how == byTable {
					got[e.to] = true
				}
			}
			for i := 1; i < len(f.Code); i++ {
				if bytes.HasPrefix(f.Code[i:], unhex("f30f1efa")) {
					want[i] = true
				}
			}
			for off := range want {
				if !got[off] {
					t.Errorf("%v: %s+%d is missing", flags, f.Name, off)
				}
			}
			for off := range got {
				// What is not marked is where the default goes: a case that the table leaves out.
				if !want[off] && len(f.Code) > 0 && !jumpedTo(b, off) {
					t.Errorf("%v: %s+%d is no case", flags, f.Name, off)
				}
			}
		}
		t.Logf("%v: %d of %d functions are known", flags, known, len(names))
		if known < len(names)-2 {
			t.Errorf("%v: only %d functions are known", flags, known)
		}
	}
}

func jumpedTo(b *body, off int) bool {
	return slices.ContainsFunc(b.entriesIn(off-1, off+1), func(e entry) bool { return e.how == byBranch })
}

// TestTablesMustBeCertain: what makes a table uncertain leaves the jump unknown.
func TestTablesMustBeCertain(t *testing.T) {
	const (
		compare = "83ff01 7712 " // cmp $1, %edi; ja to the return
		lea     = "488d15f41f0000 "
		jump    = "486304ba 4801d0 ffe0 90 90 c3" // to the no-ops, at 21 and 22
	)
	first, second := int32(21-0x2000), int32(22-0x2000)
	for _, row := range []struct {
		name, code string
		table      []int32
		inbound    abi.Addr
		known      bool
	}{
		{"certain", compare + lea + jump, []int32{first, second}, 0, true},
		{"below", "83ff01 7312 " + lea + jump, []int32{first}, 0, true},
		{"elsewhere", compare + lea + jump, []int32{first, 0x10000}, 0, true},
		{"cut off", compare + lea + jump, []int32{first}, 0, false},
		{"no data", compare + lea + jump, nil, 0, false},
		{"into an instruction", compare + lea + jump, []int32{first, 1 - 0x2000}, 0, false},
		{"another register compared", "83fe01 7712 " + lea + jump, []int32{first, second}, 0, false},
		{"a signed comparison", "83ff01 7f12 " + lea + jump, []int32{first, second}, 0, false},
		{"a negative constant", "83ffff 7712 " + lea + jump, []int32{first, second}, 0, false},
		{"entered behind the comparison", compare + lea + jump, []int32{first, second}, 5, false},
		{"entered behind the table's address", compare + lea + jump, []int32{first, second}, 12, false},
		{"the index changes", "83ff01 7714 ffc7 488d15f21f0000 486304ba 4801d0 ffe0 90 90 c3", []int32{first + 2, second + 2}, 0, false},
		{"the base changes", compare + "488d15f41f0000 ffc2 486304ba 4801d0 ffe0 90 90 c3", []int32{first, second}, 0, false},
		{"a call between", compare + "488d15f41f0000 ffd0 486304ba 4801d0 ffe0 90 90 c3", []int32{first, second}, 0, false},
	} {
		f := function(row.code)
		var b []byte
		for _, offset := range row.table {
			b = binary.LittleEndian.AppendUint32(b, uint32(offset))
		}
		f.ReadOnly = Constants{{base + 0x2000, b}}.Read
		if row.inbound != 0 {
			f.Inbound = []abi.Addr{base + row.inbound}
		}
		if b := read(f); (b.unknown == "") != row.known {
			t.Errorf("%s: %q", row.name, b.unknown)
		}
	}
}
