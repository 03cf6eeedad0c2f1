package x86

// modrm reads ModRM, SIB and the displacement.
func (d *decoder) modrm(r *row) bool {
	if !d.needModRM() {
		return false
	}
	if d.ModRM >= 0xc0 || r.attr&attrModReg != 0 {
		return true
	}
	if d.AddrSize == 2 {
		return r.attr&(attrVSIB|attrSIB|attrNoMem16) == 0 && d.mem16(r)
	}
	n := uint8(0)
	rm := d.ModRM & 7
	switch d.ModRM >> 6 {
	case 0:
		if rm == 5 {
			n = 4
		}
	case 1:
		n = 1
	case 2:
		n = 4
	}
	if rm == 4 {
		c, ok := d.next()
		if !ok {
			return false
		}
		d.SIB, d.SIBOff = c, uint8(d.pos-1)
		if c&7 == 5 && d.ModRM < 0x40 {
			n = 4
		}
	} else if r.attr&(attrVSIB|attrSIB) != 0 {
		return false
	}
	return d.displacement(n, r)
}

// mem16 reads the displacement of a 16-bit address.
func (d *decoder) mem16(r *row) bool {
	n := d.ModRM >> 6
	if d.ModRM&0xc7 == 0x06 {
		n = 2
	}
	return d.displacement(n, r)
}

func (d *decoder) displacement(n uint8, r *row) bool {
	if n == 0 {
		return true
	}
	v, off, ok := d.signed(n)
	if !ok {
		return false
	}
	d.DispOff, d.DispLen = off, n
	if n == 1 && r.scale != scaleNone {
		v <<= d.shift(r)
	}
	d.Disp = int32(v)
	return true
}

// shift is the binary logarithm of what an EVEX disp8 is multiplied by.
func (d *decoder) shift(r *row) uint {
	k := r.scale
	if d.Ctl&evexB != 0 && r.elem != scaleNone {
		k = r.elem
	}
	vl := uint(d.vl) + 4
	switch k {
	case scaleW:
		return 2 + uint(bit(d.Prefixes, RexW))
	case scaleY:
		return 2 + uint(d.OpSize>>3)
	case scaleVL:
		return vl
	case scaleVL2:
		return vl - 1
	case scaleVL4:
		return vl - 2
	case scaleVL8:
		return vl - 3
	case scaleDup:
		if d.vl == 0 {
			return 3
		}
		return vl
	}
	return uint(k - scale1)
}

// signed reads n bytes, little-endian, as a signed number.
func (d *decoder) signed(n uint8) (v int64, off uint8, ok bool) {
	if d.pos+int(n) > len(d.b) {
		d.bad = badTruncated
		return 0, 0, false
	}
	off = uint8(d.pos)
	p := d.b[d.pos : d.pos+int(n)]
	d.pos += int(n)
	switch n {
	case 1:
		v = int64(int8(p[0]))
	case 2:
		v = int64(int16(uint16(p[0]) | uint16(p[1])<<8))
	case 4:
		v = int64(int32(le32(p)))
	case 8:
		v = int64(uint64(le32(p)) | uint64(le32(p[4:]))<<32)
	}
	return v, off, true
}

func le32(p []byte) uint32 {
	return uint32(p[0]) | uint32(p[1])<<8 | uint32(p[2])<<16 | uint32(p[3])<<24
}

// immediate reads the immediates, branch displacements and absolute addresses.
func (d *decoder) immediate(k immKind) bool {
	var n1, n2 uint8
	switch k {
	case immNone:
		return true
	case imm8, immRel8:
		n1 = 1
	case imm16:
		n1 = 2
	case imm32:
		n1 = 4
	case imm64:
		n1 = 8
	case immZ:
		n1 = min(d.OpSize, 4)
	case immV:
		n1 = d.OpSize
	case imm8x2:
		n1, n2 = 1, 1
	case imm16x8:
		n1, n2 = 2, 1
	case immFar:
		n1, n2 = min(d.OpSize, 4), 2
	case immMoffs:
		n1 = d.AddrSize
	case immRelZ:
		n1 = d.relSize()
	}
	if n1 == 0 {
		return false
	}
	var ok bool
	if d.Imm, d.ImmOff, ok = d.signed(n1); !ok {
		return false
	}
	d.ImmLen = n1
	if n2 == 0 {
		return true
	}
	v, off, ok := d.signed(n2)
	d.Imm2, d.Imm2Off, d.Imm2Len = uint16(v), off, n2
	if n2 == 1 {
		d.Imm2 &= 0xff
	}
	return ok
}

// relSize is the length of a long branch displacement, 0 if it is ambiguous.
func (d *decoder) relSize() uint8 {
	if d.Mode == Mode64 && rows[d.row].br != BranchXBegin {
		if d.Prefixes&(PrefixOpSize|RexW) == PrefixOpSize {
			d.bad = badAmbiguous
			return 0
		}
		return 4
	}
	return min(d.OpSize, 4)
}
