package x86

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	bpfasm "github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
	"trapless/internal/bpf"
	"trapless/internal/bpf/routine"
)

// formatMaps are the constants that hold a format.
var formatMaps = []abi.MapSpec{{Name: ".rodata", Kind: abi.Array, KeySize: 4, ValueSize: 256, MaxEntries: 1}}

// Where a program of formatProgram has its text, behind the arguments.
const formatText = 96

// formatProgram prints the words of the input by a format behind them, and returns the
// length.
func formatProgram(format string, args, size int) *bpf.Program {
	dst := []bpfasm.Instruction{bpfasm.Mov.Reg(bpfasm.R1, bpfasm.R6), bpfasm.Add.Imm(bpfasm.R1, formatText)}
	if size == 0 {
		dst = []bpfasm.Instruction{bpfasm.Mov.Imm(bpfasm.R1, 0)}
	}
	insns := append(bpfasm.Instructions{bpfasm.Mov.Reg(bpfasm.R6, bpfasm.R1)}, dst...)
	insns = append(insns, bpfasm.Mov.Imm(bpfasm.R2, int32(size)), bpfasm.LoadMapValue(bpfasm.R3, 0, 0), bpfasm.Mov.Reg(bpfasm.R4, bpfasm.R6),
		bpfasm.Mov.Imm(bpfasm.R5, int32(8*args)), bpfasm.FnSnprintf.Call(), bpfasm.Return())
	if args == 0 {
		insns[len(insns)-4] = bpfasm.Mov.Imm(bpfasm.R4, 0)
	}
	contents := make([]byte, 256)
	copy(contents, format)
	return &bpf.Program{Name: "format", Maps: formatMaps, Constants: map[int][]byte{0: contents}, Input: bpf.Input{Memory: true, Size: formatText + 160}, Insns: insns}
}

func newFormatHarness(t testing.TB, m routine.Memory) (*harness, *model) {
	h := newHarness(t, arenaNear, abi.Config{Threads: 4, Maps: formatMaps, RingSize: 1 << 12})
	h.env.Memory = m
	h.useHelpers()
	h.env.Constants = map[int]abi.Addr{0: h.env.Arena + abi.Addr(h.env.Layout.Maps[0].Values)}
	model := newModel(h)
	model.ReadUser = h.readUser
	return h, model
}

// format prints by a format, in the process and by the interpreter.
func (h *harness) format(t testing.TB, m *model, format string, args []uint64, size int) (text string, length uint64) {
	t.Helper()
	p := formatProgram(format, len(args), size)
	v, err := bpf.Verify(p)
	if err != nil {
		t.Fatalf("%q: %v", format, err)
	}
	at := h.env.Layout.Maps[0].Values
	copy(h.arena[at:at+256], p.Constants[0])
	copy(m.Arena[at:at+256], p.Constants[0])
	memory := bytes.Repeat([]byte{0xee}, p.Input.Size)
	for i, a := range args {
		binary.LittleEndian.PutUint64(memory[8*i:], a)
	}
	want := bytes.Clone(memory)
	got, err := h.callFunction(v, memory)
	if err != nil {
		t.Fatalf("%q: %v", format, err)
	}
	m.reset(h.slotOf(h.tp))
	wanted, err := m.RunMemory(v, want)
	if err != nil {
		t.Fatalf("%q: %v", format, err)
	}
	left := h.code[memoryBase-codeBase:][:len(want)]
	if got != wanted || !bytes.Equal(left, want) {
		t.Fatalf("%q of %x into %d bytes: %d, %q, not %d, %q", format, args, size, got, left[formatText:], wanted, want[formatText:])
	}
	text, _, _ = strings.Cut(string(left[formatText:formatText+size]), "\x00")
	return text, got
}

// What formats print is written down here, as the kernel's documents have it.
func TestSnprintf(t *testing.T) {
	h, m := newFormatHarness(t, routine.Memory{})
	const at = codeSize - 4096
	copy(h.code[at:], "grace hopper\x00")
	copy(h.code[at+64:], []byte{192, 168, 0, 7, 0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xfe, 1, 2, 0x30})
	name, four, six := uint64(codeBase+at), uint64(codeBase+at+64), uint64(codeBase+at+68)
	minus := func(n int64) uint64 { return uint64(-n) }
	for _, c := range []struct {
		format string
		args   []uint64
		want   string
	}{
		{"", nil, ""}, {"nothing\n", nil, "nothing\n"}, {"100%% %d%%", []uint64{5}, "100% 5%"},
		{"%d %i %u", []uint64{minus(1), 1 << 32, minus(1)}, "-1 0 4294967295"},
		{"%ld %lli %lu %llx", []uint64{minus(1), minus(1 << 62), minus(1), minus(1)}, "-1 -4611686018427387904 18446744073709551615 ffffffffffffffff"},
		{"%lld", []uint64{1 << 63}, "-9223372036854775808"},
		{"%x %X %lx", []uint64{0xbeef, 0xbeef, 0}, "beef BEEF 0"},
		{"[%5d] [%-5d] [%05d] [%+d] [% d] [%+ 05d] [%-05d]", []uint64{1, 2, 3, 4, 5, 6, 7}, "[    1] [2    ] [00003] [+4] [ 5] [+0006] [7    ]"},
		{"[%5d] [%-5d] [%05d] [%+d]", []uint64{minus(1), minus(2), minus(3), minus(4)}, "[   -1] [-2   ] [-0003] [-4]"},
		{"[%+u] [% x] [%06X] [%12u]", []uint64{1, 2, 0xabc, 7}, "[1] [2] [000ABC] [           7]"},
		{"[%c] [%3c] [%-3c] [%03c]", []uint64{'a', 'b', 'c', 'd'}, "[a] [  b] [c  ] [  d]"},
		{"[%s] [%14s] [%-14s] [%3s] [%014s]", []uint64{name, name, name, name, name}, "[grace hopper] [  grace hopper] [grace hopper  ] [grace hopper] [  grace hopper]"},
		{"[%pks] [%pus] [%s]", []uint64{name, name + 6, 8}, "[grace hopper] [hopper] []"},
		{"%px|%p|%pK|%20px|%-20px|%020px", []uint64{0x1000, 0x2000, 0x3000, 0x4000, 0x5000, 0x6000},
			"0000000000001000|0000000000002000|0000000000003000|                4000|5000                |00000000000000006000"},
		{"%pI4 %pi4 %pI4", []uint64{four, four, 8}, "192.168.0.7 192.168.000.007 0.0.0.0"},
		{"%pI6 %pi6", []uint64{six, six}, "2001:0db8:0000:0000:0000:00ff:fe01:0230 20010db800000000000000fffe010230"},
	} {
		for _, size := range []int{160, len(c.want) + 1, len(c.want), 1, 0} {
			got, n := h.format(t, m, c.format, c.args, size)
			if want := c.want[:max(0, min(len(c.want), size-1))]; got != want || n != uint64(len(c.want)+1) {
				t.Errorf("%q into %d bytes is %q, %d, not %q, %d", c.format, size, got, n, want, len(c.want)+1)
			}
		}
	}
}

// randomFormat is a format and its arguments.
func randomFormat(r *rand.Rand, address func() uint64) (format string, args []uint64) {
	verbs := []string{"d", "i", "u", "x", "X", "c", "s", "p", "px", "pK", "pks", "pus", "pI4", "pi4", "pI6", "pi6"}
	for range r.IntN(7) {
		verb := verbs[r.IntN(len(verbs))]
		flags, width, long := "", "", ""
		for range r.IntN(3) {
			flags += string("-+ 0"[r.IntN(4)])
		}
		if r.IntN(2) == 0 {
			width = fmt.Sprint(1 + r.IntN(24))
		}
		v := r.Uint64() >> r.IntN(64)
		if r.IntN(4) == 0 {
			v = -v
		}
		switch {
		case strings.Contains("diuxX", verb):
			long = []string{"", "l", "ll"}[r.IntN(3)]
		case strings.HasSuffix(verb, "s") || strings.HasPrefix(strings.ToLower(verb), "pi"):
			v = address()
		}
		format += strings.Repeat("-%%,", r.IntN(2)) + "%" + flags + width + long + verb + []string{" ", "/", "\n", ","}[r.IntN(4)]
		args = append(args, v)
	}
	return format, args
}

// Random formats print in the process what the interpreter prints, of strings and
// addresses at the ends of what is mapped, too.
func TestSnprintfCompiledAsInterpreted(t *testing.T) {
	const end = uint64(codeBase) + codeSize
	for i, memory := range []routine.Memory{{}, {Stack: 0x690, Permanent: []abi.Range{{Start: abi.Addr(end) - 2*abi.PageSize, End: abi.Addr(end) - 7}}}} {
		h, m := newFormatHarness(t, memory)
		r := rand.New(rand.NewPCG(uint64(i), 14))
		text := h.code[codeSize-3*abi.PageSize:]
		for i := range text {
			if text[i] = byte(1 + r.IntN(255)); r.IntN(30) == 0 {
				text[i] = 0
			}
		}
		clear(text[5000:5001])
		for i := range text[5001:7000] {
			text[5001+i] = 'x' // longer than what is printed
		}
		address := func() uint64 {
			return []uint64{end - r.Uint64N(40), end - 2*abi.PageSize - r.Uint64N(20), end - 3*abi.PageSize + r.Uint64N(7000), end + 100, 0, 1 << 47, ^uint64(3)}[r.IntN(7)]
		}
		for range 300 {
			format, args := randomFormat(r, address)
			h.format(t, m, format, args, r.IntN(161))
		}
	}
}
