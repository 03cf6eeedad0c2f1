package x86

// A row is what the tables say about one opcode: the Go form of a line of
// opcodes.txt, written by gen.
type row struct {
	ops   [6]operand
	attr  attr
	name  uint16
	flags uint8 // index into flagEffects
	imm   immKind
	br    Branch
	scale scale // EVEX: multiplier of a disp8
	elem  scale // EVEX: size of a broadcast element; scaleNone: no broadcast
}

// operand is a general register, memory or other operand of a row:
// its place, size and access.
type operand uint16

const (
	opPlace  operand = 0x1f
	opSize   operand = 7 << 5
	opAccess operand = 7 << 8
)

// Places.
const (
	opNone  operand = iota
	opRM            // ModRM.rm: general register or memory
	opR             // ModRM.rm: general register only
	opM             // ModRM.rm: memory only
	opReg           // ModRM.reg: general register
	opOpc           // low three bits of the opcode: general register
	opV             // vvvv: general register
	opFixed         // general register, number in the bits from opFixedShift on
	opXM            // ModRM.rm: a register that is not a general one, or memory
	opX             // ModRM.rm: a register that is not a general one
	opXReg          // ModRM.reg: a register that is not a general one
	opXV            // vvvv: a register that is not a general one
	opTile          // ModRM.rm: one of eight registers
	opEReg          // ModRM.reg: one of eight registers
	opEV            // vvvv: one of eight registers
	opSeg           // ModRM.reg: segment register
	opCR            // ModRM.reg: control register
	opDR            // ModRM.reg: debug register
	opSrc           // memory at rsi
	opDst           // memory at rdi
	opMoffs         // memory at an absolute address
	opPush          // memory pushed
	opPop           // memory popped
	opMemIn         // memory at an implied address
)

// Sizes, of general registers only. Nothing asks for the others'.
const (
	sz8  operand = (iota + 1) << 5
	sz16         // never a full overwrite
	sz32         // zero-extended into the whole register
	sz64
	szV // 16, 32 or 64 by operand size
	szY // 32, or 64 with W
	szA // by address size
)

// Accesses.
const (
	accRead  operand = 1 << 8
	accWrite operand = 2 << 8
	accCond  operand = 4 << 8 // the write may not happen
)

const opFixedShift = 11

// immKind is the layout of the immediate bytes.
type immKind uint8

const (
	immNone  immKind = iota
	imm8             // one byte
	imm16            // two
	imm32            // four
	imm64            // eight
	immZ             // 2 or 4 by operand size
	immV             // 2, 4 or 8 by operand size
	imm8x2           // two of one byte
	imm16x8          // two bytes, then one (enter)
	immFar           // offset of 2 or 4 bytes, then a selector of two
	immMoffs         // as long as an address
	immRel8          // branch displacement of one byte
	immRelZ          // branch displacement of 2 or 4 bytes
)

// attr is a set of properties of a row.
type attr uint32

const (
	attrModRM   attr = 1 << iota // a ModRM byte follows the opcode
	attrModReg                   // its mod field is ignored: always a register
	attrLock                     // a lock prefix is allowed with a memory operand
	attrRep                      // f2 and f3 repeat it rcx times
	attrD64                      // operand size is 64 by default in 64-bit mode
	attrF64                      // operand size is 64 always in 64-bit mode
	attrDiv                      // may raise #DE
	attrFP                       // may raise a floating-point exception
	attrPriv                     // faults outside of ring 0, or may
	attrAll                      // reads and writes any general register and flag
	attrCount                    // flags are written unless the masked shift count is 0
	attrIdiom                    // of twice the same register, the result does not depend on it
	attrVSIB                     // SIB is mandatory, its index is a vector register
	attrSIB                      // SIB is mandatory
	attrMask                     // EVEX: aaa may be non-zero
	attrZero                     // EVEX: z may be set
	attrMaskReq                  // EVEX: aaa must not be zero
	attrRound                    // EVEX: b may be set with registers: rounding, L'L is not a length
	attrSAE                      // EVEX: b may be set with registers
	attrVVVV                     // vvvv names an operand
	attrUnique                   // the destination is none of the sources
	attrRegs                     // names registers of which some numbers do not exist
	attrND                       // EVEX.b makes vvvv the destination instead of the first operand
	attrND0                      // EVEX.b has another meaning
	attrNF                       // EVEX: flags may be left alone
	attrCC                       // EVEX: the last byte and vvvv hold a condition and flags
	attrNoMem16                  // no 16-bit addressing
)

// scale is what an EVEX disp8 is multiplied by.
type scale uint8

const (
	scaleNone scale = iota
	scale1
	scale2
	scale4
	scale8
	scale16
	scale32
	scale64
	scaleW   // 4, or 8 with W
	scaleY   // 4, or 8 with W in 64-bit mode
	scaleVL  // the vector length
	scaleVL2 // half of it
	scaleVL4
	scaleVL8
	scaleDup // movddup: 8 for 128 bits, else the vector length
)

// flagEffect is a named line of flags in opcodes.txt: those that are read, those
// surely written, those perhaps written, and those that the manuals leave
// undefined.
type flagEffect struct{ read, must, may, undef Flags }

// A node of the decision tree has one child for each value of a fact about
// the instruction; a child is a row, or another node (nodeFlag set).
type node struct {
	by    decision
	first uint16 // its first child's index in children
}

const nodeFlag = 0x8000

// decision is the fact that a node branches on.
type decision uint8

const (
	byPrefix   decision = iota // mandatory prefix: none, 66, F3, F2
	byMode                     // Mode
	byOpSize                   // 2, 4, 8
	byAddrSize                 // 2, 4, 8
	byRexB                     // RexB
	byW                        // RexW
	byL                        // vector length: 128, 256, 512, reserved
	byMod                      // memory, register
	byReg                      // ModRM.reg
	byRM                       // ModRM.rm
	byBcast                    // EVEX.b
)

// Indices into roots.
const (
	tabOne = iota
	tab0F
	tab0F38
	tab0F3A
	tab3DNow
	tabREX2              // opcodes that only REX2 has in the one-byte map
	tabVEX               // + map number 0 to 7
	tabEVEX = tabVEX + 8 // + map number 0 to 7
	tabXOP  = tabEVEX    // + map number 8 to 10
	numTabs = tabXOP + 11
)
