package x86

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand"
	"os"
	"os/exec"
	"sort"
	"strings"
	"testing"

	"trapless/internal/testkit"
)

// llvmAnswer is struct answer of testdata/llvm.c.
type llvmAnswer struct {
	Len  uint8
	Text [79]byte
}

func (a *llvmAnswer) text() string {
	n := bytes.IndexByte(a.Text[:], 0)
	return strings.Join(strings.Fields(string(a.Text[:n])), " ")
}

// name is the mnemonic, without a prefix such as {evex}.
func (a *llvmAnswer) name() string {
	for _, w := range strings.Fields(a.text()) {
		if w[0] != '{' {
			return w
		}
	}
	return ""
}

// llvm is the running program.
type llvm struct {
	t     *testing.T
	in    io.Writer
	out   io.Reader
	batch []question
	asked int
	both  int // accepted by both
	wrong map[string]string
	known map[string]int
}

func startLLVM(t *testing.T) *llvm {
	testkit.RequirePackage(t, "libllvm19")
	cmd := exec.Command(testkit.CompileFile(t, "testdata/llvm.c", testkit.Flags{"-Wl,--no-as-needed", "-l:libLLVM.so.19.1"}))
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		cmd.Wait()
	})
	return &llvm{t: t, in: in, out: bufio.NewReaderSize(out, 1<<20), wrong: map[string]string{}, known: map[string]int{}}
}

func (l *llvm) ask(code []byte) {
	l.batch = append(l.batch, ask(Mode64, code))
	if len(l.batch) == zydisBatch {
		l.flush()
	}
}

func (l *llvm) flush() {
	n := len(l.batch)
	l.asked += n
	l.batch = append(l.batch, make([]question, zydisBatch-n)...)
	answers := make([]llvmAnswer, zydisBatch)
	if err := binary.Write(l.in, binary.LittleEndian, l.batch); err != nil {
		l.t.Fatal("llvm: ", err)
	}
	if err := binary.Read(l.out, binary.LittleEndian, answers); err != nil {
		l.t.Fatal("llvm: ", err)
	}
	for k := range n {
		l.check(&l.batch[k], &answers[k])
	}
	l.batch = l.batch[:0]
}

func (l *llvm) check(q *question, a *llvmAnswer) {
	i, err := Decode(q.code(), Mode64)
	what := ""
	switch {
	case err != nil && a.Len == 0:
		return
	case err != nil:
		what = "refuses"
	case a.Len == 0:
		what = "accepts"
	case i.Len != a.Len:
		what = fmt.Sprintf("length %d, not %d", i.Len, a.Len)
	default:
		l.both++
		return
	}
	for _, k := range llvmDifferences {
		if strings.HasPrefix(what, k.what) && k.is(q, &i, err, a) {
			l.known[k.why]++
			return
		}
	}
	key := fmt.Sprintf("%s: %q here, %q in LLVM", what, i.Mnemonic(), a.name())
	if _, seen := l.wrong[key]; !seen {
		l.wrong[key] = fmt.Sprintf("% x: %s, %v", q.code(), a.text(), err)
	}
}

// llvmDifferences are the ways in which LLVM 19 differs on purpose.
var llvmDifferences = []struct {
	what string
	why  string
	is   func(q *question, i *Inst, err error, a *llvmAnswer) bool
}{
	{"length", "with B4, LLVM takes SIB.base 5 for r21 or r29 even where mod is 0",
		func(q *question, i *Inst, err error, a *llvmAnswer) bool {
			return i.SIBOff != 0 && i.ModRM < 0x40 && i.SIB&7 == 5 && i.Prefixes&RexB4 != 0
		}},
	{"", "with REX2 as with REX, on which Zydis has judged; LLVM minds prefixes and unusual opcodes less or more",
		func(q *question, i *Inst, err error, a *llvmAnswer) bool { return sameWithREX(q.code()) }},
	{"refuses", "rows 4, 7, A and E, prefixes and escapes may not follow REX2 (APX specification, 3.1.2.1)",
		func(q *question, i *Inst, err error, a *llvmAnswer) bool {
			at := bytes.IndexByte(q.code(), 0xd5)
			if at < 0 || at > 1 {
				return false
			}
			p, op := q.code()[at+1], q.code()[at+2]
			return p < 0x80 && !rex2Allowed(op) || p >= 0x80 && (op>>4 == 3 || op>>4 == 8)
		}},
	{"accepts", "LLVM does not take W where it means nothing, F6 /1 as test, shl as /6, nor ZU with NF",
		func(q *question, i *Inst, err error, a *llvmAnswer) bool {
			n := i.Mnemonic()
			return i.Map == 4 && (i.Prefixes&RexW != 0 || n == "ctest" || n == "imul" || n == "shl" && i.ModRM>>3&7 == 6)
		}},
	{"length", "LLVM prints a 66 prefix behind a REX prefix alone",
		func(q *question, i *Inst, err error, a *llvmAnswer) bool {
			return a.name() == "data16" && q.Bytes[1] == 0x66
		}},
	{"accepts", "AMX-MOVRS is newer than LLVM 19",
		func(q *question, i *Inst, err error, a *llvmAnswer) bool {
			return strings.HasPrefix(i.Mnemonic(), "tileloaddrs")
		}},
	{"refuses", "X4 is the old U bit, and has to be 1 where it extends no index",
		func(q *question, i *Inst, err error, a *llvmAnswer) bool {
			b := q.code()
			return b[0] == 0x62 && b[2]&4 == 0 && b[5] >= 0xc0
		}},
	{"accepts", "LLVM minds W and L'L where AVX-512 ignores them; on that Zydis has judged", isAVX512},
	{"refuses", "LLVM does not mind mask registers above 7, nor overlaps; on that Zydis has judged", isAVX512},
	{"refuses", "NF makes LLVM overlook pp",
		func(q *question, i *Inst, err error, a *llvmAnswer) bool {
			b := q.code()
			return b[0] == 0x62 && b[1]&7 == 4 && b[2]&3 != 0 && b[3]&evexNF != 0
		}},
	{"refuses", "z, L'L and aaa mean nothing to general registers, and must be 0",
		func(q *question, i *Inst, err error, a *llvmAnswer) bool {
			b := q.code()
			return b[0] == 0x62 && b[3]&(evexZ|evexLL|3) != 0
		}},
	{"", "R and R4 do not name a mask register, nor B4 and X4 what they could not reach",
		func(q *question, i *Inst, err error, a *llvmAnswer) bool {
			b := q.code()
			return b[0] == 0x62 && b[1]&7 == 1
		}},
}

// isAVX512 reports whether the bytes are EVEX without APX opcodes.
func isAVX512(q *question, i *Inst, err error, a *llvmAnswer) bool {
	b := q.code()
	return b[0] == 0x62 && b[1]&7 != 4 && !promoted(b[1]&7, b[4])
}

// sameWithREX reports whether an instruction with REX2 is what it is with REX:
// refused too, or of the same kind and length.
func sameWithREX(code []byte) bool {
	at := bytes.IndexByte(code, 0xd5)
	if at < 0 || at > 1 || code[at+1] < 0x80 && !rex2Allowed(code[at+2]) {
		return false
	}
	b := append([]byte{}, code[:at]...)
	p := code[at+1]
	b = append(b, 0x40|p&15)
	if p >= 0x80 {
		b = append(b, 0x0f)
	}
	rex, err1 := Decode(append(b, code[at+2:]...), Mode64)
	rex2, err2 := Decode(code, Mode64)
	return (err1 == nil) == (err2 == nil) && rex.row == rex2.row && rex.Len-rex.OpcodeOff == rex2.Len-rex2.OpcodeOff
}

func (l *llvm) report() {
	l.flush()
	var keys []string
	for k := range l.wrong {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	for n, k := range keys {
		if n == 60 {
			l.t.Errorf("and %d more kinds", len(keys)-n)
			break
		}
		l.t.Errorf("%s\n\t%s", k, l.wrong[k])
	}
	for why, n := range l.known {
		l.t.Logf("known: %s: %d", why, n)
	}
	l.t.Logf("%d asked, %d accepted by both", l.asked, l.both)
}

// TestNewerByLLVM walks what Zydis 4.0 does not know, APX above all, and compares
// validity and length with LLVM 19.
func TestNewerByLLVM(t *testing.T) {
	for _, c := range []struct {
		name   string
		sample int
		walk   func(r *rand.Rand, yield func([]byte))
	}{{"rex2", 1, walkREX2}, {"map4", 8, walkMap4}, {"promoted", 8, walkPromoted}, {"newer", 1, walkNewer}, {"egpr", 16, walkEGPR}} {
		t.Run(c.name, func(t *testing.T) {
			l := startLLVM(t)
			pick := rand.New(rand.NewSource(7))
			c.walk(rand.New(rand.NewSource(8)), func(b []byte) {
				if long() || pick.Intn(c.sample) == 0 {
					l.ask(b)
				}
			})
			l.report()
		})
	}
}

func walkREX2(r *rand.Rand, yield func([]byte)) {
	for n := range 1 << 17 {
		for _, p := range []string{"", "\x66", "\xf3", "\xf2"} {
			b := append([]byte(p), 0xd5, byte(n>>16<<7|r.Intn(128)), byte(n>>8), byte(n))
			yield(pad(r, b))
		}
	}
}

// walkMap4 takes every W, pp, opcode and ModRM, with 8 choices of the rest.
func walkMap4(r *rand.Rand, yield func([]byte)) {
	for n := range 1 << 22 {
		w, pp := n>>18&1, n>>16&3
		p0 := byte(0xf4) ^ byte(r.Intn(2)*r.Intn(32)<<3)
		v := byte(0x7c)
		if r.Intn(2) == 0 {
			v ^= byte(r.Intn(32) << 2)
		}
		p2 := byte(8)
		switch r.Intn(8) {
		case 0:
			p2 = byte(r.Intn(256))
		case 1, 2, 3:
			p2 |= 0x10
		}
		if r.Intn(4) == 0 {
			p2 ^= 4
		}
		yield(pad(r, []byte{0x62, p0, byte(w<<7|pp) | v, p2, byte(n >> 8), byte(n)}))
	}
}

// walkPromoted takes what EVEX has of VEX's opcodes, with vector length 0.
func walkPromoted(r *rand.Rand, yield func([]byte)) {
	maps := [4]byte{1, 2, 3, 7}
	for n := range 1 << 21 {
		mp, w, pp := maps[n>>19&3], n>>18&1, n>>16&3
		op := byte(n >> 8)
		if !promoted(mp, op) {
			continue
		}
		for range 8 {
			p0 := 0xf0 ^ byte(r.Intn(2)*r.Intn(32)<<3) | mp
			v := byte(0x7c)
			if r.Intn(2) == 0 {
				v ^= byte(r.Intn(32) << 2)
			}
			p2 := byte(8)
			if r.Intn(4) == 0 {
				p2 = byte(r.Intn(256))
			}
			yield(pad(r, []byte{0x62, p0, byte(w<<7|pp) | v, p2, op, byte(n)}))
		}
	}
}

// walkNewer takes the instructions that Decode knows and Zydis 4.0 does not.
func walkNewer(r *rand.Rand, yield func([]byte)) {
	take := func(b []byte) {
		if i, err := Decode(b, Mode64); err == nil && i.Enc != EncREX2 && newerThanZydis(&i) {
			yield(b)
		}
	}
	walkLegacy(r, Mode64, take)
	walkVEX(r, Mode64, take)
}

// walkEGPR takes AVX-512 in memory that general registers 16 to 31 address.
func walkEGPR(r *rand.Rand, yield func([]byte)) {
	walkEVEX(r, Mode64, func(b []byte) {
		if mp := b[1] & 7; mp != 4 && mp != 7 && !promoted(mp, b[4]) && b[5] < 0xc0 {
			b[1] ^= byte(r.Intn(2) << 3)
			b[2] ^= byte(r.Intn(2) << 2)
			yield(b)
		}
	})
}

// promoted reports whether a VEX opcode of general registers, masks or tiles is
// in EVEX too.
func promoted(mp, op byte) bool {
	switch mp {
	case 1:
		return op >= 0x90 && op <= 0x93
	case 2:
		return op >= 0x49 && op <= 0x4b || op >= 0xe0 && op <= 0xef || op >= 0xf2 && op <= 0xf7
	case 3:
		return op == 0xf0
	}
	return op == 0xf8
}
