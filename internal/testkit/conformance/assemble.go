package conformance

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
)

// insn is an instruction of 8 bytes (RFC 9669, 3).
type insn struct {
	opcode   uint8
	dst, src uint8
	off      int16
	imm      int32
	label    string // where it jumps to, when that is a name
}

// Opcode parts (RFC 9669, 3 to 5).
const (
	classLD    = 0x00
	classLDX   = 0x01
	classST    = 0x02
	classSTX   = 0x03
	classALU   = 0x04
	classJMP   = 0x05
	classJMP32 = 0x06
	classALU64 = 0x07

	sourceReg = 0x08

	modeMEM    = 0x60
	modeMEMSX  = 0x80
	modeATOMIC = 0xc0

	opCall = 0x80
	opExit = 0x90
	opMov  = 0xb0
	opEnd  = 0xd0

	fetch = 0x01
)

var aluOps = map[string]uint8{
	"add": 0x00, "sub": 0x10, "mul": 0x20, "div": 0x30, "sdiv": 0x30, "or": 0x40, "and": 0x50, "lsh": 0x60,
	"rsh": 0x70, "neg": 0x80, "mod": 0x90, "smod": 0x90, "xor": 0xa0, "mov": 0xb0, "arsh": 0xc0,
}

var jumpOps = map[string]uint8{
	"jeq": 0x10, "jgt": 0x20, "jge": 0x30, "jset": 0x40, "jne": 0x50, "jsgt": 0x60, "jsge": 0x70,
	"jlt": 0xa0, "jle": 0xb0, "jslt": 0xc0, "jsle": 0xd0,
}

var sizes = map[string]uint8{"w": 0x00, "h": 0x08, "b": 0x10, "dw": 0x18}

var atomicOps = map[string]int32{
	"add": 0x00, "or": 0x40, "and": 0x50, "xor": 0xa0, "xchg": 0xe0 | fetch, "cmpxchg": 0xf0 | fetch,
}

// Assemble encodes a program, one instruction or label a line. A jump to the
// label "exit" goes to the first exit instruction.
func Assemble(lines []string) ([]byte, error) {
	var out []insn
	labels := map[string]int{}
	for _, line := range lines {
		fields := strings.Fields(strings.ReplaceAll(line, ",", " "))
		if l, ok := strings.CutSuffix(fields[0], ":"); ok {
			if _, dup := labels[l]; dup {
				return nil, fmt.Errorf("label %s is defined twice", l)
			}
			labels[l] = len(out)
			continue
		}
		if _, known := labels["exit"]; fields[0] == "exit" && !known {
			labels["exit"] = len(out)
		}
		in, err := assembleOne(fields[0], fields[1:])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", line, err)
		}
		out = append(out, in...)
	}
	return encode(out, labels)
}

func encode(insns []insn, labels map[string]int) ([]byte, error) {
	var b []byte
	for i, in := range insns {
		if in.label != "" {
			to, ok := labels[in.label]
			if !ok {
				return nil, fmt.Errorf("there is no label %s", in.label)
			}
			if in.opcode == classJMP|opCall || in.opcode == classJMP32 {
				in.imm = int32(to - i - 1)
			} else {
				in.off = int16(to - i - 1)
			}
		}
		b = append(b, in.opcode, in.src<<4|in.dst)
		b = binary.LittleEndian.AppendUint16(b, uint16(in.off))
		b = binary.LittleEndian.AppendUint32(b, uint32(in.imm))
	}
	return b, nil
}

// operands reads the operands of one instruction; the first mistake stays.
type operands struct {
	list []string
	err  error
}

func (o *operands) next() string {
	if len(o.list) == 0 {
		o.fail("an operand is missing")
		return ""
	}
	s := o.list[0]
	o.list = o.list[1:]
	return s
}

func (o *operands) fail(format string, args ...any) {
	if o.err == nil {
		o.err = fmt.Errorf(format, args...)
	}
}

func (o *operands) reg(s string) uint8 {
	n, err := strconv.ParseUint(strings.TrimPrefix(s, "%r"), 10, 4)
	if err != nil || !strings.HasPrefix(s, "%r") {
		o.fail("%q is not a register", s)
	}
	return uint8(n)
}

func (o *operands) num(s string, bits int) uint64 {
	n, err := number(s, bits)
	if err != nil {
		o.fail("%w", err)
	}
	return n
}

// value sets the second operand: a register or a constant.
func (o *operands) value(in *insn) {
	s := o.next()
	if strings.HasPrefix(s, "%") {
		in.opcode |= sourceReg
		in.src = o.reg(s)
		return
	}
	in.imm = int32(o.num(s, 32))
}

// memory reads [%rN+off] and returns its parts.
func (o *operands) memory() (uint8, int16) {
	s := o.next()
	s, ok := strings.CutPrefix(s, "[")
	s, ok2 := strings.CutSuffix(s, "]")
	if !ok || !ok2 {
		o.fail("%q is not in brackets", s)
	}
	i := strings.IndexAny(s, "+-")
	if i < 0 {
		return o.reg(s), 0
	}
	return o.reg(s[:i]), int16(o.num(s[i:], 16))
}

// target sets where a jump goes: by a distance or to a label.
func (o *operands) target(in *insn) {
	s := o.next()
	if strings.HasPrefix(s, "+") || strings.HasPrefix(s, "-") {
		in.off = int16(o.num(s, 16))
		return
	}
	in.label = s
}

func assembleOne(name string, list []string) ([]insn, error) {
	o := &operands{list: list}
	var out []insn
	if name == "lddw" {
		dst, n := o.reg(o.next()), o.num(o.next(), 64)
		out = []insn{{opcode: classLD | sizes["dw"], dst: dst, imm: int32(n)}, {imm: int32(n >> 32)}}
	} else {
		out = []insn{o.insn(name)}
	}
	if len(o.list) > 0 {
		o.fail("operands are left: %v", o.list)
	}
	return out, o.err
}

func (o *operands) insn(name string) (in insn) {
	base, bits := strings.TrimRight(name, "0123456789"), strings.TrimLeft(name, "abcdefghijklmnopqrstuvwxyz")
	switch {
	case name == "exit":
		in.opcode = classJMP | opExit
	case name == "lock":
		in = o.atomic()
	case name == "call":
		in = o.call()
	case name == "ja", name == "ja32":
		in.opcode = classJMP
		if name == "ja32" {
			in.opcode = classJMP32
		}
		o.target(&in)
	case base == "be", base == "le", base == "swap", base == "bswap":
		in = o.swap(base, bits)
	case base == "movsx":
		in = o.movsx(bits)
	case strings.HasPrefix(name, "ldx"), strings.HasPrefix(name, "st"):
		in = o.access(name)
	case isKey(aluOps, base):
		in = o.alu(base, bits)
	case isKey(jumpOps, base):
		in.opcode = classJMP
		if bits == "32" {
			in.opcode = classJMP32
		}
		in.opcode |= jumpOps[base]
		in.dst = o.reg(o.next())
		o.value(&in)
		o.target(&in)
	default:
		o.fail("unknown instruction %s", name)
	}
	return in
}

func isKey(m map[string]uint8, k string) bool {
	_, ok := m[k]
	return ok
}

func (o *operands) alu(op, bits string) (in insn) {
	in.opcode = classALU64 | aluOps[op]
	if bits == "32" {
		in.opcode = classALU | aluOps[op]
	}
	if op == "sdiv" || op == "smod" {
		in.off = 1
	}
	in.dst = o.reg(o.next())
	if op != "neg" || len(o.list) > 0 {
		o.value(&in)
	}
	return in
}

// movsx is movsxFROMTO, with numbers of bits.
func (o *operands) movsx(bits string) insn {
	in := insn{opcode: classALU64 | opMov | sourceReg}
	from, wide := strings.CutSuffix(bits, "64")
	if !wide {
		from, _ = strings.CutSuffix(bits, "32")
		in.opcode = classALU | opMov | sourceReg
	}
	in.off = int16(o.num(from, 16))
	in.dst = o.reg(o.next())
	in.src = o.reg(o.next())
	return in
}

func (o *operands) swap(op, bits string) insn {
	in := insn{opcode: classALU | opEnd}
	switch op {
	case "be":
		in.opcode |= sourceReg
	case "swap", "bswap":
		in.opcode = classALU64 | opEnd
	}
	in.imm = int32(o.num(bits, 32))
	in.dst = o.reg(o.next())
	return in
}

func (o *operands) access(name string) (in insn) {
	for _, form := range []struct {
		prefix string
		opcode uint8
	}{{"ldxs", classLDX | modeMEMSX}, {"ldx", classLDX | modeMEM}, {"stx", classSTX | modeMEM}, {"st", classST | modeMEM}} {
		s, ok := strings.CutPrefix(name, form.prefix)
		size, known := sizes[s]
		if !ok || !known {
			continue
		}
		in.opcode = form.opcode | size
		if form.opcode&7 == classLDX {
			in.dst = o.reg(o.next())
			in.src, in.off = o.memory()
			return in
		}
		in.dst, in.off = o.memory()
		if form.opcode&7 == classST {
			in.imm = int32(o.num(o.next(), 32))
		} else {
			in.src = o.reg(o.next())
		}
		return in
	}
	o.fail("unknown instruction %s", name)
	return in
}

// atomic is "lock [fetch] OP[32] [%rN+off], %rM".
func (o *operands) atomic() (in insn) {
	name := o.next()
	if name == "fetch" {
		in.imm = fetch
		name = o.next()
	}
	name, short := strings.CutSuffix(name, "32")
	op, ok := atomicOps[name]
	if !ok {
		o.fail("unknown atomic operation %s", name)
	}
	in.imm |= op
	in.opcode = classSTX | modeATOMIC | sizes["dw"]
	if short {
		in.opcode = classSTX | modeATOMIC | sizes["w"]
	}
	in.dst, in.off = o.memory()
	in.src = o.reg(o.next())
	return in
}

// call is "call [helper] N", "call %rN", "call local LABEL" or "call runtime N".
func (o *operands) call() insn {
	in := insn{opcode: classJMP | opCall}
	s := o.next()
	switch s {
	case "local":
		in.src = 1
		in.label = o.next()
		return in
	case "runtime":
		in.src = 2
		s = o.next()
	case "helper":
		s = o.next()
	}
	if strings.HasPrefix(s, "%") {
		in.opcode |= sourceReg
		in.dst = o.reg(s)
		return in
	}
	in.imm = int32(o.num(s, 32))
	return in
}
