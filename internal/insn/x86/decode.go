package x86

// Decode decodes the instruction at the start of b. It reads at most MaxLen
// bytes and never past len(b), keeps no reference to b, and does not allocate.
//
// Its errors are ErrTruncated, ErrInvalid and ErrAmbiguous; the Inst is then
// not meaningful.
func Decode(b []byte, m Mode) (i Inst, err error) {
	d := decoder{Inst: &i, b: b}
	if len(b) > MaxLen {
		d.b = b[:MaxLen]
	}
	i.Mode = m
	if !d.decode() {
		return Inst{}, d.failure(len(b))
	}
	return i, nil
}

// decoder is the state of one Decode.
type decoder struct {
	*Inst
	b   []byte
	pos int
	pp  uint8 // mandatory prefix: 0 none, 1 66, 2 F3, 3 F2
	vl  uint8 // vector length: 0 128, 1 256, 2 512 bits
	tab int   // index into roots
	bad badness
}

// badness is why decode gave up.
type badness uint8

const (
	badInvalid badness = iota
	badTruncated
	badAmbiguous
)

// failure is the error for a decode of n bytes that gave up.
func (d *decoder) failure(n int) error {
	switch {
	case d.bad == badAmbiguous:
		return ErrAmbiguous
	case d.bad == badTruncated && n < MaxLen:
		return ErrTruncated
	}
	return ErrInvalid
}

// next reads one byte.
func (d *decoder) next() (byte, bool) {
	if d.pos >= len(d.b) {
		d.bad = badTruncated
		return 0, false
	}
	c := d.b[d.pos]
	d.pos++
	return c, true
}

func (d *decoder) decode() bool {
	if !d.prefixes() || !d.opcode() {
		return false
	}
	d.sizes()
	if d.Enc == Enc3DNow {
		return d.decode3DNow()
	}
	if d.Enc == EncEVEX && !d.lengthEVEX() || !d.find(roots[d.tab][d.Opcode]) {
		return false
	}
	r := &rows[d.row]
	if r.attr&attrModRM != 0 && !d.modrm(r) {
		return false
	}
	d.resize(r)
	if !d.immediate(r.imm) || !d.legal(r) {
		return false
	}
	d.Len = uint8(d.pos)
	d.Branch = r.br
	if r.br == BranchTrap && d.Opcode == 0xcd && d.Imm&0xff == 0x80 {
		d.Branch = BranchSyscall
	}
	return true
}

// prefixes reads the legacy prefixes and REX.
func (d *decoder) prefixes() bool {
	for d.pos < len(d.b) {
		c := d.b[d.pos]
		p := prefixOf[c]
		if p == 0 {
			if c&0xf0 != 0x40 || d.Mode != Mode64 {
				return true
			}
			// A REX takes effect only right before the opcode.
			d.Prefixes = d.Prefixes&^rexBits | PrefixREX | rexOf(c)
			d.ExtOff, d.ExtLen = uint8(d.pos), 1
			d.pos++
			continue
		}
		d.Prefixes = d.Prefixes&^rexBits | p
		d.ExtOff, d.ExtLen = 0, 0
		switch c {
		case 0xf2:
			d.pp = 3
		case 0xf3:
			d.pp = 2
		case 0x66:
			if d.pp == 0 {
				d.pp = 1
			}
		}
		d.pos++
	}
	d.bad = badTruncated
	return false
}

const rexBits = PrefixREX | RexW | RexR | RexX | RexB

// rexOf turns the low bits of a REX byte (WRXB) into prefixes.
func rexOf(c byte) Prefixes {
	return Prefixes(c&1)*RexB | Prefixes(c>>1&1)*RexX | Prefixes(c>>2&1)*RexR | Prefixes(c>>3&1)*RexW
}

var prefixOf = [256]Prefixes{
	0x66: PrefixOpSize, 0x67: PrefixAddrSize, 0xf0: PrefixLock, 0xf2: PrefixRepne, 0xf3: PrefixRep,
	0x26: PrefixES, 0x2e: PrefixCS, 0x36: PrefixSS, 0x3e: PrefixDS, 0x64: PrefixFS, 0x65: PrefixGS,
}

// opcode reads the escapes or the VEX-like prefix, and the opcode byte.
func (d *decoder) opcode() bool {
	c, _ := d.next()
	switch c {
	case 0x0f:
		return d.escape()
	case 0xc4, 0xc5, 0x62, 0x8f, 0xd5:
		if d.startsExtension(c) {
			return d.extension(c)
		}
	}
	d.tab, d.Opcode, d.OpcodeOff = tabOne, c, uint8(d.pos-1)
	return true
}

// escape reads what follows 0F.
func (d *decoder) escape() bool {
	c, ok := d.next()
	d.tab, d.Map = tab0F, 1
	switch {
	case !ok:
		return false
	case c == 0x0f:
		d.Enc = Enc3DNow
		return true
	case c == 0x38 || c == 0x3a:
		d.tab, d.Map = tab0F38, 2
		if c == 0x3a {
			d.tab, d.Map = tab0F3A, 3
		}
		if c, ok = d.next(); !ok {
			return false
		}
	}
	d.Opcode, d.OpcodeOff = c, uint8(d.pos-1)
	return true
}

// decode3DNow decodes what follows 0F 0F: the opcode is the last byte.
func (d *decoder) decode3DNow() bool {
	d.row = 0
	if !d.needModRM() || !d.modrm(&rows[0]) {
		return false
	}
	d.OpcodeOff = uint8(d.pos)
	c, ok := d.next()
	if !ok {
		return false
	}
	d.Opcode = c
	if !d.find(roots[tab3DNow][c]) || !d.legal(&rows[d.row]) {
		return false
	}
	d.Len = uint8(d.pos)
	return true
}

// sizes sets the operand and address sizes that the prefixes ask for.
func (d *decoder) sizes() {
	d.OpSize = 4
	if d.Prefixes&RexW != 0 && d.Mode == Mode64 {
		d.OpSize = 8
	} else if d.Prefixes&PrefixOpSize != 0 || d.Enc == EncEVEX && d.Map == 4 && d.pp == 1 {
		d.OpSize = 2
	}
	d.AddrSize = 8 >> uint(d.Mode)
	if d.Prefixes&PrefixAddrSize != 0 {
		d.AddrSize >>= 1
	}
}

// resize corrects the operand size for opcodes with a size of their own.
func (d *decoder) resize(r *row) {
	if d.Mode != Mode64 || r.attr&(attrD64|attrF64) == 0 {
		return
	}
	if r.attr&attrF64 != 0 || d.OpSize == 4 {
		d.OpSize = 8
	}
}

// find walks the decision tree from n to a row.
func (d *decoder) find(n uint16) bool {
	for n&nodeFlag != 0 {
		nd := &nodes[n&^nodeFlag]
		if nd.by >= byMod && nd.by <= byRM && !d.needModRM() {
			return false
		}
		n = children[nd.first+uint16(d.decide(nd.by))]
	}
	d.row = n
	return n != 0
}

// decide is the value of a fact, as an index into a node's children.
func (d *decoder) decide(by decision) uint8 {
	switch by {
	case byPrefix:
		return d.pp
	case byMode:
		return uint8(d.Mode)
	case byOpSize:
		return d.OpSize >> 2
	case byAddrSize:
		return d.AddrSize >> 2
	case byRexB:
		return bit(d.Prefixes, RexB)
	case byW:
		return bit(d.Prefixes, RexW)
	case byL:
		return d.vl
	case byMod:
		if d.ModRM >= 0xc0 {
			return 1
		}
		return 0
	case byReg:
		return d.ModRM >> 3 & 7
	case byRM:
		return d.ModRM & 7
	case byBcast:
		return d.Ctl >> 4 & 1
	}
	panic("BUG: x86: unknown decision")
}

// bit is 1 if the single prefix bit is set, else 0.
func bit(p, b Prefixes) uint8 {
	if p&b != 0 {
		return 1
	}
	return 0
}

// needModRM reads the ModRM byte, once.
func (d *decoder) needModRM() bool {
	if d.ModRMOff != 0 {
		return true
	}
	c, ok := d.next()
	d.ModRM, d.ModRMOff = c, uint8(d.pos-1)
	return ok
}
