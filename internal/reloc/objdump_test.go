package reloc

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"trapless/internal/abi"
	"trapless/internal/insn/x86"
	"trapless/internal/testkit"
)

var (
	objdumpLine = regexp.MustCompile(`^\s*([0-9a-f]+):\t((?:[0-9a-f]{2} )+)\s*\t(.*)$`)
	ripOperand  = regexp.MustCompile(`\[rip[+-]0x[0-9a-f]+\](.*?)\s+# (0x[0-9a-f]+)`)
)

// objdump disassembles code at an address: the text of the instruction at each.
// A RIP-relative operand appears as the address that it refers to.
func objdump(t *testing.T, code []byte, at abi.Addr) map[abi.Addr]string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "code")
	if err := os.WriteFile(file, code, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(testkit.Command(t, "objdump", "binutils"), "-D", "-w", "-b", "binary", "-m", "i386:x86-64", "-M", "intel",
		fmt.Sprintf("--adjust-vma=%#x", uint64(at)), file).Output()
	if err != nil {
		t.Fatal(err)
	}
	texts := map[abi.Addr]string{}
	for row := range strings.Lines(string(out)) {
		m := objdumpLine.FindStringSubmatch(strings.TrimRight(row, "\n"))
		if m == nil {
			continue
		}
		addr, err := strconv.ParseUint(m[1], 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		text := ripOperand.ReplaceAllString(m[3], "[$2]$1")
		texts[abi.Addr(addr)] = strings.Join(strings.Fields(text), " ")
	}
	return texts
}

// TestMovedReadsTheSame lets objdump read real instructions before and after
// the move. It names absolute addresses, so the texts are equal.
func TestMovedReadsTheSame(t *testing.T) {
	const oldBase, newBase abi.Addr = 0x10000000, 0x50000000
	type place struct{ from, to abi.Addr }
	var was, is []byte
	var places []place
	for _, s := range corpus(t, 2) {
		if _, err := Size(s.in); err != nil || s.in.Branch == x86.BranchLoop {
			continue
		}
		p := place{oldBase + abi.Addr(len(was)), newBase + abi.Addr(len(is))}
		got, err := Move(s.in, s.code, p.from, p.to)
		if err != nil {
			continue // its operand lies far away now
		}
		was, is = append(was, s.code...), append(is, got...)
		places = append(places, p)
	}
	before, after := objdump(t, was, oldBase), objdump(t, is, newBase)
	same, other := 0, 0
	for _, p := range places {
		b, a := before[p.from], after[p.to]
		if a != b || a == "" {
			t.Errorf("%v: %q, moved to %v: %q", p.from, b, p.to, a)
			if other++; other > 10 {
				t.FailNow()
			}
			continue
		}
		same++
	}
	t.Logf("%d instructions read the same", same)
}
