package image

import (
	"bytes"

	"trapless/internal/abi"
)

// frameMachine runs call frame instructions (DWARF 5, 6.4.2) as far as they concern the CFA, the frame
// pointer and the return address.
type frameMachine struct {
	cie      *frameCIE
	state    frameState
	initial  frameState
	saved    []frameState
	loc, end VAddr
	signal   bool
	refused  bool // an instruction is not understood: nothing is known from here on
	out      []UnwindRow
}

// frameState is what holds at one address.
type frameState struct {
	reg  uint64 // of the CFA
	off  int64
	expr []byte // instead of them
	bp   savedReg
	ra   savedReg
}

// savedReg says where a register of the caller is.
type savedReg struct {
	off  int64 // from the CFA
	expr []byte
	rule savedRule
}

type savedRule uint8

const (
	savedNot     savedRule = iota // it is unchanged; of the return address: at off
	savedAt                       // at off
	savedByExpr                   // at what expr computes
	savedUnclear                  // somewhere else
	savedNowhere                  // it has no value
)

// Instructions that unwind.go does not name.
const (
	cfaSetLoc           = 0x01
	cfaAdvanceLoc1      = 0x02
	cfaAdvanceLoc2      = 0x03
	cfaAdvanceLoc4      = 0x04
	cfaOffsetExtended   = 0x05
	cfaRestoreExtended  = 0x06
	cfaUndefined        = 0x07
	cfaSameValue        = 0x08
	cfaRegister         = 0x09
	cfaRestoreState     = 0x0b
	cfaDefCFARegister   = 0x0d
	cfaDefCFAOffset     = 0x0e
	cfaExpression       = 0x10
	cfaOffsetExtendedSF = 0x11
	cfaValOffset        = 0x14
	cfaValOffsetSF      = 0x15
	cfaValExpression    = 0x16
	cfaGNUArgsSize      = 0x2e
	cfaGNUNegative      = 0x2f
	cfaAdvance          = 0x40
	cfaRestore          = 0xc0
)

const maxRemembered = 64

func (m *frameMachine) run(code []byte) {
	c := cursor{code, true}
	for len(c.rest) > 0 && !m.refused {
		m.step(&c)
		if !c.ok {
			m.refused = true
		}
	}
}

// step runs one instruction.
func (m *frameMachine) step(c *cursor) {
	op := c.byte()
	low := uint64(op & 0x3f)
	switch {
	case op&0xc0 == cfaAdvance:
		m.advance(low)
	case op&0xc0 == cfaOffset:
		m.setReg(low, savedReg{off: int64(c.uleb()) * m.cie.data, rule: savedAt})
	case op&0xc0 == cfaRestore:
		m.restore(low)
	case op >= cfaSetLoc && op <= cfaAdvanceLoc4:
		m.move(op, c)
	case op >= cfaDefCFA && op <= cfaDefCFAExpression || op == cfaDefCFASF || op == cfaDefCFAOffsetSF:
		m.defCFA(op, c)
	default:
		m.other(op, c)
	}
}

// move runs an instruction that goes on to another address.
func (m *frameMachine) move(op byte, c *cursor) {
	n := map[byte]int{cfaAdvanceLoc1: 1, cfaAdvanceLoc2: 2, cfaAdvanceLoc4: 4}[op]
	if n == 0 { // set_loc: by an encoded pointer, which no compiler writes
		m.refused = true
		return
	}
	var delta uint64
	for i := range n {
		delta |= uint64(c.byte()) << (8 * i)
	}
	m.advance(delta)
}

// defCFA runs an instruction that defines the CFA.
func (m *frameMachine) defCFA(op byte, c *cursor) {
	s := &m.state
	switch op {
	case cfaDefCFA:
		s.reg, s.off, s.expr = c.uleb(), int64(c.uleb()), nil
	case cfaDefCFASF:
		s.reg, s.off, s.expr = c.uleb(), c.sleb()*m.cie.data, nil
	case cfaDefCFARegister:
		s.reg = c.uleb()
	case cfaDefCFAOffset:
		s.off = int64(c.uleb())
	case cfaDefCFAOffsetSF:
		s.off = c.sleb() * m.cie.data
	case cfaDefCFAExpression:
		s.expr = c.block()
	}
}

// other runs the rest: where registers are, and what is remembered.
func (m *frameMachine) other(op byte, c *cursor) {
	switch op {
	case cfaNop:
	case cfaOffsetExtended:
		m.setReg(c.uleb(), savedReg{off: int64(c.uleb()) * m.cie.data, rule: savedAt})
	case cfaOffsetExtendedSF:
		m.setReg(c.uleb(), savedReg{off: c.sleb() * m.cie.data, rule: savedAt})
	case cfaGNUNegative:
		m.setReg(c.uleb(), savedReg{off: -int64(c.uleb()) * m.cie.data, rule: savedAt})
	case cfaRestoreExtended:
		m.restore(c.uleb())
	case cfaUndefined:
		m.setReg(c.uleb(), savedReg{rule: savedNowhere})
	case cfaSameValue:
		m.setReg(c.uleb(), savedReg{})
	case cfaExpression:
		m.setReg(c.uleb(), savedReg{expr: c.block(), rule: savedByExpr})
	case cfaRegister, cfaValOffset, cfaValOffsetSF:
		m.setReg(c.uleb(), savedReg{rule: savedUnclear})
		c.uleb()
	case cfaValExpression:
		m.setReg(c.uleb(), savedReg{rule: savedUnclear})
		c.block()
	case cfaGNUArgsSize:
		c.uleb()
	case cfaRememberState:
		if m.saved = append(m.saved, m.state); len(m.saved) > maxRemembered {
			m.refused = true
		}
	case cfaRestoreState:
		if n := len(m.saved); n > 0 {
			m.state, m.saved = m.saved[n-1], m.saved[:n-1]
		}
	default:
		m.refused = true
	}
}

// block reads bytes with their number before them.
func (c *cursor) block() []byte {
	n := c.uleb()
	if n > uint64(len(c.rest)) {
		c.ok = false
		return nil
	}
	b := c.rest[:n]
	c.rest = c.rest[n:]
	return b
}

func (m *frameMachine) setReg(reg uint64, s savedReg) {
	switch reg {
	case dwarfRBP:
		m.state.bp = s
	case dwarfRA:
		m.state.ra = s
	}
}

func (m *frameMachine) restore(reg uint64) {
	switch reg {
	case dwarfRBP:
		m.state.bp = m.initial.bp
	case dwarfRA:
		m.state.ra = m.initial.ra
	}
}

// advance ends what holds for the code before.
func (m *frameMachine) advance(delta uint64) {
	m.flush()
	next := uint64(m.loc) + delta*uint64(m.cie.code)
	if next < uint64(m.loc) || next > uint64(m.end) {
		m.refused = true
		return
	}
	m.loc = VAddr(next)
}

func (m *frameMachine) flush() {
	m.out = appendRow(m.out, UnwindRow{m.loc, m.rule()})
}

// rule is what holds, in the table's form.
func (m *frameMachine) rule() abi.UnwindRule {
	s := &m.state
	refused := abi.NewUnwindRule(abi.UnwindRefused, 0)
	if m.refused {
		return refused
	}
	if m.signal {
		if m.isUcontext() {
			return abi.NewUnwindRule(abi.UnwindSignal, 0)
		}
		return refused
	}
	if s.ra.rule == savedNowhere {
		return abi.NewUnwindRule(abi.UnwindEnd, 0)
	}
	kind, off := s.cfa()
	const most = 1 << 23
	if kind == abi.UnwindRefused || off < -most || off >= most || s.ra.off != -8 || s.ra.rule > savedAt {
		return refused
	}
	rule := abi.NewUnwindRule(kind, int32(off))
	switch {
	case s.bp.rule == savedAt && s.bp.off > -most && s.bp.off < most:
		return rule.SaveBP(int32(s.bp.off))
	case s.bp.rule == savedByExpr && kind == abi.UnwindAtBP:
		// What gcc writes where it aligns the stack: the frame pointer is at itself (DW_OP_breg6 0).
		if reg, at, ok := baseAndOffset(s.bp.expr); ok && reg == dwarfRBP && at == 0 {
			return abi.NewUnwindRule(kind, int32(off)) | abi.UnwindBPAtBP
		}
		return refused
	case s.bp.rule == savedNot || s.bp.rule == savedNowhere:
		return rule
	}
	return refused
}

// cfa is the kind of the CFA and its offset.
func (s *frameState) cfa() (kind int, off int64) {
	switch {
	case s.expr == nil && s.reg == dwarfRSP:
		return abi.UnwindSP, s.off
	case s.expr == nil && s.reg == dwarfRBP:
		return abi.UnwindBP, s.off
	case s.expr == nil:
		return abi.UnwindRefused, 0
	}
	if from, ok := stubExpression(s.expr); ok {
		return abi.UnwindStub, from
	}
	if body, ok := bytes.CutSuffix(s.expr, []byte{opDeref}); ok {
		switch reg, off, ok := baseAndOffset(body); {
		case ok && reg == dwarfRBP:
			return abi.UnwindAtBP, off
		case ok && reg == dwarfRSP:
			return abi.UnwindAtSP, off
		}
	}
	return abi.UnwindRefused, 0
}

// isUcontext reports whether the registers are where the kernel puts them for a signal handler's return.
func (m *frameMachine) isUcontext() bool {
	s := &m.state
	kind, off := s.cfa()
	at := func(r savedReg, want int64) bool {
		reg, off, ok := baseAndOffset(r.expr)
		return r.rule == savedByExpr && ok && reg == dwarfRSP && off == want
	}
	return kind == abi.UnwindAtSP && off == abi.UcontextSP && at(s.bp, abi.UcontextBP) && at(s.ra, abi.UcontextIP)
}

// Operations of expressions (DWARF 5, 7.7.1).
const (
	opDeref = 0x06
	opBreg0 = 0x70
	opLit0  = 0x30
)

// baseAndOffset reads an expression that is a register and an offset.
func baseAndOffset(expr []byte) (reg uint64, off int64, ok bool) {
	if len(expr) < 2 || expr[0] < opBreg0 || expr[0] > opBreg0+31 {
		return 0, 0, false
	}
	c := cursor{expr[1:], true}
	off = c.sleb()
	return uint64(expr[0] - opBreg0), off, c.ok && len(c.rest) == 0
}

// stubExpression recognizes what linkers write for linkage tables: rsp + 8 + ((rip & 15) >= N) * 8.
func stubExpression(expr []byte) (from int64, ok bool) {
	want := []byte{opBreg0 + dwarfRSP, 8, opBreg0 + dwarfRA, 0, opLit0 + 15, 0x1a /* and */, 0, 0x2a /* ge */, opLit0 + 3, 0x24 /* shl */, 0x22 /* plus */}
	if len(expr) != len(want) {
		return 0, false
	}
	want[6] = expr[6]
	return int64(expr[6]) - opLit0, bytes.Equal(expr, want) && expr[6] >= opLit0 && expr[6] < opLit0+16
}
