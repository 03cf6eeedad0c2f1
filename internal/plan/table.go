package plan

import (
	"encoding/binary"

	"trapless/internal/abi"
	insn "trapless/internal/insn/x86"
)

// Data is a stretch of a module's memory that never changes.
type Data struct {
	Start abi.Addr
	Bytes []byte
}

// Limits of the reading of switch tables.
const (
	tableBudget = 64   // instructions that are looked at before the jump
	tableMost   = 8192 // entries; compilers make no greater tables
)

// table is a switch statement's: offsets to itself of four bytes, or absolute
// addresses of eight.
type table struct {
	at    abi.Addr
	size  int // of an entry
	index insn.Reg
	use   int // the instruction that reads the table
}

// switches follows the indirect jumps. Those whose tables are understood add
// entries; one that is not may lead anywhere.
func (b *body) switches() {
	var found []entry
	for i, in := range b.insts {
		if in.Branch != insn.BranchJmpInd || in.RIPRel() {
			continue
		}
		targets, ok := b.tableTargets(i)
		if !ok {
			b.unknown = "the indirect jump at " + b.addr(b.at[i]).String()
			continue
		}
		for _, to := range targets {
			found = append(found, entry{to, b.at[i], byTable})
		}
	}
	b.entries = append(b.entries, found...)
	b.sortEntries()
}

// tableTargets are the offsets in the function to which the jump with index i
// leads by a table. It reports false unless the table's place and length are
// certain and all of it makes sense.
func (b *body) tableTargets(i int) ([]int, bool) {
	t, ok := b.findTable(i)
	if !ok {
		return nil, false
	}
	n, ok := b.bound(t.use, t.index)
	if !ok || n > tableMost {
		return nil, false
	}
	var targets []int
	for k := range n {
		to, ok := b.f.tableEntry(t, k)
		if !ok {
			return nil, false
		}
		if to < b.f.Start || to >= b.f.End() {
			continue // a part of the function that lies elsewhere
		}
		off := int(to - b.f.Start)
		if _, boundary := b.find(off); !boundary {
			return nil, false
		}
		targets = append(targets, off)
	}
	return targets, true
}

// findTable recognises what gcc and clang make of a switch:
//
//	jmp *table(,idx,8)
//	mov table(,idx,8), r; jmp *r
//	lea table(%rip), base; movslq (base,idx,4), r; add base, r; jmp *r
//
// The last one's sum may also be made in base, and other instructions may stand
// between.
func (b *body) findTable(i int) (table, bool) {
	in := b.insts[i]
	if t, ok := b.absolute(i); ok {
		return t, true
	}
	if in.HasMem() {
		return table{}, false
	}
	sum := rmOf(in)
	j, ok := b.writer(i, sum)
	if !ok {
		return table{}, false
	}
	if t, ok := b.absolute(j); ok && b.insts[j].Opcode == 0x8b {
		return t, true
	}
	add := b.insts[j]
	if !isPlain(add) || add.Opcode&^2 != 0x01 || add.Prefixes&insn.RexW == 0 || add.HasMem() {
		return table{}, false
	}
	other := rmOf(add)
	if other == sum {
		other = regOf(add)
	}
	if t, ok := b.relative(j, sum, other); ok {
		return t, true
	}
	return b.relative(j, other, sum)
}

// absolute recognises the memory operand table(,idx,8).
func (b *body) absolute(i int) (table, bool) {
	in := b.insts[i]
	_, based := in.Base()
	index, indexed := in.Index()
	if !isPlain(in) || !in.HasMem() || in.SIBOff == 0 || based || !indexed || in.SIB>>6 != 3 || in.AddrSize != 8 {
		return table{}, false
	}
	return table{abi.Addr(int64(in.Disp)), 8, index, i}, true
}

// relative recognises, before the addition with index j, the load of an entry
// to one register with the table's address in another one.
func (b *body) relative(j int, loaded, base insn.Reg) (table, bool) {
	use, ok := b.writer(j, loaded)
	if !ok {
		return table{}, false
	}
	in := b.insts[use]
	from, based := in.Base()
	index, indexed := in.Index()
	if !isPlain(in) || in.Opcode != 0x63 || in.Prefixes&insn.RexW == 0 || !based || !indexed || from != base ||
		loaded == base || in.SIB>>6 != 2 || in.Disp != 0 {
		return table{}, false
	}
	at, ok := b.writer(j, base)
	if !ok || at > use || !isLea(b.insts[at]) || !b.insts[at].RIPRel() {
		return table{}, false
	}
	lea := b.insts[at]
	return table{b.addr(b.at[at]) + abi.Addr(lea.Len) + abi.Addr(int64(lea.Disp)), 4, index, use}, true
}

// writer is the last instruction before the one with index i that writes a
// register, if control can have come no other way.
func (b *body) writer(i int, r insn.Reg) (int, bool) {
	for j := i - 1; j >= 0 && b.straight(i, j); j-- {
		if b.insts[j].Effects().Write.Has(r) {
			return j, true
		}
	}
	return 0, false
}

// straight reports whether control comes from the instruction with index j to
// the next one, which is not far before i, by falling through and in no other
// way.
func (b *body) straight(i, j int) bool {
	k := b.insts[j].Branch
	next := b.at[j] + int(b.insts[j].Len)
	return i-j <= tableBudget && (k == insn.BranchNone || k == insn.BranchJcc) && len(b.entriesIn(next-1, next+1)) == 0
}

// bound is how many values a register may have at the instruction with index i,
// from 0 on, because an unsigned comparison or a mask says so.
func (b *body) bound(i int, r insn.Reg) (int, bool) {
	limit := -1 // of a conditional jump whose comparison was not met yet: 1 if it lets equality through, else 0
	width := 8  // bytes of the register that count
	for j := i - 1; j >= 0 && b.straight(i, j); j-- {
		in := b.insts[j]
		e := in.Effects()
		n, compared := constantOf(in, r, 7)
		mask, masked := constantOf(in, r, 4)
		switch {
		case in.Branch == insn.BranchJcc:
			limit = fallsBelow(in)
		case compared && limit >= 0:
			return n + limit, operandSize(in) >= min(width, 4)
		case masked:
			return mask + 1, operandSize(in) >= min(width, 4)
		case e.Write.Has(r):
			from, bytes := copied(in)
			if bytes == 0 {
				return 0, false
			}
			r, width = from, min(width, bytes)
		}
		if in.Branch == insn.BranchNone && e.FlagsWrite != 0 {
			limit = -1
		}
	}
	return 0, false
}

// fallsBelow says whether control that does not take a branch has found an
// unsigned value below what it was compared with (0) or not above it (1); -1 if
// neither.
func fallsBelow(in insn.Inst) int {
	switch in.Opcode & 0x0f {
	case 0x3: // jae
		return 0
	case 0x7: // ja
		return 1
	}
	return -1
}

// constantOf is the constant, not negative, of an arithmetic instruction on a
// register: number op of the group 80, 81, 83.
func constantOf(in insn.Inst, r insn.Reg, op byte) (int, bool) {
	if !isPlain(in) || in.Imm < 0 {
		return 0, false
	}
	switch in.Opcode {
	case 0x80, 0x81, 0x83:
		return int(in.Imm), !in.HasMem() && rmOf(in) == r && in.ModRM>>3&7 == op && (in.Opcode != 0x80 || hasLowByte(in))
	case op<<3 | 4, op<<3 | 5:
		return int(in.Imm), r == insn.RAX
	}
	return 0, false
}

// operandSize is the size of what constantOf has recognised, in bytes.
func operandSize(in insn.Inst) int {
	if in.Opcode == 0x80 || in.Opcode&7 == 4 {
		return 1
	}
	return int(in.OpSize)
}

// hasLowByte reports whether rm, as a byte register, is the low byte of the
// register of that number: not ah, ch, dh, bh.
func hasLowByte(in insn.Inst) bool { return in.Prefixes&insn.PrefixREX != 0 || rmOf(in) < 4 }

// copied is the register whose low bytes an instruction copies to another one
// with zeros above, and how many these are; 0 if it does nothing of the kind.
func copied(in insn.Inst) (insn.Reg, int) {
	if in.Enc != insn.EncLegacy || in.ModRMOff == 0 || in.HasMem() || in.OpSize < 4 {
		return 0, 0
	}
	switch {
	case in.Map == 0 && in.Opcode == 0x89:
		return regOf(in), int(in.OpSize)
	case in.Map == 0 && in.Opcode == 0x8b:
		return rmOf(in), int(in.OpSize)
	case in.Map == 1 && in.Opcode == 0xb7:
		return rmOf(in), 2
	case in.Map == 1 && in.Opcode == 0xb6 && hasLowByte(in):
		return rmOf(in), 1
	}
	return 0, 0
}

// tableEntry is where entry k of a table leads.
func (f *Func) tableEntry(t table, k int) (abi.Addr, bool) {
	at := t.at + abi.Addr(k*t.size)
	for _, d := range f.ReadOnly {
		if at < d.Start || uint64(at-d.Start)+uint64(t.size) > uint64(len(d.Bytes)) {
			continue
		}
		b := d.Bytes[at-d.Start:]
		if t.size == 4 {
			return t.at + abi.Addr(int64(int32(binary.LittleEndian.Uint32(b)))), true
		}
		return abi.Addr(binary.LittleEndian.Uint64(b)), true
	}
	return 0, false
}

// isPlain reports an instruction of the one-byte opcodes.
func isPlain(in insn.Inst) bool { return in.Enc == insn.EncLegacy && in.Map == 0 }

// rmOf and regOf are the registers that ModRM names, where it names registers.
func rmOf(in insn.Inst) insn.Reg  { return extended(in.ModRM, in.Prefixes&insn.RexB != 0) }
func regOf(in insn.Inst) insn.Reg { return extended(in.ModRM>>3, in.Prefixes&insn.RexR != 0) }

func extended(n byte, rex bool) insn.Reg {
	r := insn.Reg(n & 7)
	if rex {
		r += 8
	}
	return r
}
