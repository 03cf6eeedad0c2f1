package x86

// Bits of an EVEX prefix's last byte, Inst.Ctl.
const (
	evexAAA  = 0x07 // mask register
	evexB    = 0x10 // broadcast, rounding or new data destination
	evexLL   = 0x60 // vector length or rounding mode
	evexZ    = 0x80 // zeroing instead of merging
	evexNF   = 0x04 // APX: no flags
	ctlLBit  = 5    // where the vector length starts
	rexOfEVX = RexR | RexX | RexB | RexW | RexR4 | RexX4 | RexB4
)

// startsExtension reports whether the byte c, just read, starts a VEX, XOP, EVEX or
// REX2 prefix rather than an instruction of its own.
func (d *decoder) startsExtension(c byte) bool {
	if c == 0xd5 {
		return d.Mode == Mode64
	}
	if d.Mode == Mode64 && c != 0x8f {
		return true
	}
	if d.pos >= len(d.b) {
		return false // truncated either way; ModRM will find out
	}
	if c == 0x8f {
		return d.b[d.pos]&0x1f >= 8
	}
	return d.b[d.pos] >= 0xc0
}

// extension reads the rest of the prefix that c starts, and the opcode.
func (d *decoder) extension(c byte) bool {
	if c == 0xd5 {
		return d.rex2()
	}
	const forbidden = PrefixREX | PrefixOpSize | PrefixLock | PrefixRep | PrefixRepne
	if d.Prefixes&forbidden != 0 {
		return false
	}
	n := 2
	switch c {
	case 0xc5:
		n = 1
	case 0x62:
		n = 3
	}
	if d.pos+n >= len(d.b) {
		d.bad = badTruncated
		return false
	}
	p := d.b[d.pos : d.pos+n]
	d.ExtOff, d.ExtLen = uint8(d.pos-1), uint8(n+1)
	d.pos += n
	ok := true
	switch c {
	case 0xc5:
		ok = d.vex(p[0]&0x80|0x61, p[0]&0x7f, EncVEX) // X, B and W clear, map 0F
	case 0xc4:
		ok = d.vex(p[0], p[1], EncVEX)
	case 0x8f:
		ok = d.vex(p[0], p[1], EncXOP)
	case 0x62:
		ok = d.evex(p)
	}
	d.Opcode, d.OpcodeOff = d.b[d.pos], uint8(d.pos)
	d.pos++
	return ok
}

// vex takes the two payload bytes of a VEX or XOP prefix.
func (d *decoder) vex(p0, p1 byte, enc Encoding) bool {
	d.Enc, d.Map = enc, p0&0x1f
	d.Prefixes |= rexOf(^p0>>5) | Prefixes(p1>>7)*RexW
	d.VVVV = ^p1 >> 3 & 15
	d.vl = p1 >> 2 & 1
	d.Ctl = d.vl << ctlLBit
	d.pp = ppOf[p1&3]
	d.mask32()
	if enc == EncXOP {
		d.tab = tabXOP + int(d.Map)
		return d.Map <= 10 && d.pp == 0
	}
	d.tab = tabVEX + int(d.Map)
	return d.Map <= 7
}

// ppOf turns the pp field into a mandatory prefix as decoder.pp has it.
var ppOf = [4]uint8{0, 1, 2, 3}

// evex takes the three payload bytes of an EVEX prefix.
func (d *decoder) evex(p []byte) bool {
	d.Enc, d.Map = EncEVEX, p[0]&7
	d.Prefixes |= rexOf(^p[0]>>5) | Prefixes(^p[0]>>4&1)*RexR4 | Prefixes(p[0]>>3&1)*RexB4
	d.Prefixes |= Prefixes(p[1]>>7)*RexW | Prefixes(^p[1]>>2&1)*RexX4
	d.VVVV = ^p[1]>>3&15 | ^p[2]&8<<1
	d.Ctl = p[2]
	d.vl = p[2] & evexLL >> ctlLBit
	d.pp = ppOf[p[1]&3]
	ok := d.Mode == Mode64 || d.Prefixes&(RexB4|RexX4) == 0
	d.mask32()
	d.tab = tabEVEX + int(d.Map)
	return ok
}

// lengthEVEX corrects the vector length where L'L holds a rounding mode, which
// only registers of full length have. In map 4 the bits mean other things.
func (d *decoder) lengthEVEX() bool {
	if !d.needModRM() {
		return false
	}
	if d.Map != 4 && d.Ctl&evexB != 0 && d.ModRM >= 0xc0 {
		d.vl = 2
	}
	return true
}

// mask32 drops what 32-bit mode ignores: there are eight registers.
func (d *decoder) mask32() {
	if d.Mode == Mode32 {
		d.Prefixes &^= rexOfEVX &^ RexW
	}
}

// rex2 takes the payload of a REX2 prefix and reads the opcode.
func (d *decoder) rex2() bool {
	if d.Prefixes&PrefixREX != 0 {
		return false
	}
	d.ExtOff, d.ExtLen = uint8(d.pos-1), 2
	p, _ := d.next()
	c, ok := d.next()
	if !ok {
		return false
	}
	d.Enc, d.tab = EncREX2, tabOne
	d.Prefixes |= rexOf(p) | Prefixes(p>>4&1)*RexB4 | Prefixes(p>>5&1)*RexX4 | Prefixes(p>>6&1)*RexR4
	d.Opcode, d.OpcodeOff = c, uint8(d.pos-1)
	if p&0x80 != 0 {
		d.tab, d.Map = tab0F, 1
		return c>>4 != 3 && c>>4 != 8
	}
	if c == 0xa1 {
		d.tab = tabREX2
	}
	return rex2Allowed(c)
}

// rex2Allowed reports whether REX2 may precede an opcode of the one-byte map:
// not the rows 4, 7, A and E (but A1, which is jmpabs then), no prefix and no
// escape (APX specification, 3.1.2.1).
func rex2Allowed(c byte) bool {
	switch c >> 4 {
	case 4, 7, 0xe:
		return false
	case 0xa:
		return c == 0xa1
	}
	switch c {
	case 0x0f, 0xc4, 0xc5, 0x62, 0xd5:
		return false
	}
	return prefixOf[c] == 0
}
