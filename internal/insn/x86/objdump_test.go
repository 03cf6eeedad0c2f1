package x86

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"trapless/internal/testkit"
)

// objdumpLine is one instruction as objdump has it.
type objdumpLine struct {
	at   uint64
	code []byte
	text string
}

// objdump calls yield for each instruction in [start, end) of a file.
func objdump(t *testing.T, path string, start, end uint64, yield func(objdumpLine)) {
	cmd := exec.Command(testkit.Command(t, "objdump", "binutils"), "-d", "-w", "-M", "intel", "-j", ".text",
		fmt.Sprintf("--start-address=%#x", start), fmt.Sprintf("--stop-address=%#x", end), path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if l, ok := parseObjdump(lines.Text()); ok {
			yield(l)
		}
	}
	io.Copy(io.Discard, out)
	if err := cmd.Wait(); err != nil {
		t.Fatal("objdump: ", err)
	}
}

// parseObjdump reads "address:\tbytes\tinstruction".
func parseObjdump(line string) (l objdumpLine, ok bool) {
	parts := strings.SplitN(line, "\t", 3)
	if len(parts) != 3 {
		return l, false
	}
	at, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(parts[0]), ":"), 16, 64)
	if err != nil {
		return l, false
	}
	code, err := hex.DecodeString(strings.ReplaceAll(strings.TrimSpace(parts[1]), " ", ""))
	return objdumpLine{at, code, strings.TrimSpace(parts[2])}, err == nil
}

// objdumpDifferences are the ways in which objdump 2.40 differs on purpose.
var objdumpDifferences = []struct {
	why string
	is  func(l objdumpLine, i Inst, err error) bool
}{
	{"objdump joins fwait with the x87 instruction behind it", func(l objdumpLine, i Inst, err error) bool {
		return l.code[0] == 0x9b && i.Len == 1
	}},
	{"objdump prints prefixes alone where no instruction follows", func(l objdumpLine, i Inst, err error) bool {
		return onlyPrefixes(l.code)
	}},
	{"a near branch with a 66 prefix has no length that all processors agree on", func(l objdumpLine, i Inst, err error) bool {
		return err == ErrAmbiguous
	}},
	{"APX is newer than objdump 2.40", func(l objdumpLine, i Inst, err error) bool {
		return i.Enc == EncREX2 || i.Enc == EncEVEX && (i.Map == 4 || i.Prefixes&(RexB4|RexX4) != 0)
	}},
	{"objdump splits an instruction at a symbol", func(l objdumpLine, i Inst, err error) bool {
		return strings.HasPrefix(l.text, ".byte")
	}},
	{"objdump knows no reason to refuse (bad)", func(l objdumpLine, i Inst, err error) bool {
		return err != nil && strings.Contains(l.text, "(bad)")
	}},
}

func onlyPrefixes(code []byte) bool {
	for _, c := range code {
		if prefixOf[c] == 0 && c&0xf0 != 0x40 {
			return false
		}
	}
	return true
}

// TestCorpusByObjdump compares the length of each instruction of real code with
// objdump. Where code is mixed with data (libcrypto), objdump shows instructions
// that no processor runs: those Decode may refuse if Zydis refuses them too.
func TestCorpusByObjdump(t *testing.T) {
	for _, f := range corpus(t) {
		t.Run(filepath.Base(f.path), func(t *testing.T) {
			c := objdumpCheck{t: t, f: &f, known: map[string]int{}}
			c.z = startZydis(t, c.second)
			for _, w := range f.windows(4, 1<<17) {
				c.last = f.base + uint64(w[1])
				objdump(t, f.path, f.base+uint64(w[0]), c.last, c.line)
			}
			c.z.flush(t)
			for why, n := range c.known {
				t.Logf("known: %s: %d", why, n)
			}
			t.Logf("%d instructions", c.lines)
		})
	}
}

// objdumpCheck compares one file.
type objdumpCheck struct {
	t     *testing.T
	f     *corpusFile
	z     *zydis
	last  uint64 // the end of the window, which may cut an instruction
	lines int
	known map[string]int
}

func (c *objdumpCheck) line(l objdumpLine) {
	c.lines++
	if l.at+MaxLen >= c.last {
		return
	}
	b := c.f.text[l.at-c.f.base:]
	i, err := Decode(b, Mode64)
	if err == nil && int(i.Len) == len(l.code) {
		return
	}
	for _, d := range objdumpDifferences {
		if d.is(l, i, err) {
			c.known[d.why]++
			return
		}
	}
	if err == nil {
		c.t.Errorf("%#x: % x: length %d, objdump says %d: %s", l.at, b[:MaxLen], i.Len, len(l.code), l.text)
		return
	}
	c.z.ask(c.t, Mode64, b[:MaxLen])
}

// second is told what Zydis thinks of bytes that Decode refused.
func (c *objdumpCheck) second(q *question, a *answer) {
	if a.Status == 0 {
		c.t.Errorf("% x: refused; objdump and Zydis accept it: %s", q.code(), a.mnemonic())
		return
	}
	c.known["objdump accepts what Zydis refuses too"]++
}
