package x86

// legal checks what the decision tree does not: prefixes and fields that the
// opcode does not allow, and registers that do not exist.
func (d *decoder) legal(r *row) bool {
	if d.Prefixes&PrefixLock != 0 && (r.attr&attrLock == 0 || !d.HasMem()) {
		return false
	}
	switch d.Enc {
	case EncVEX, EncXOP:
		if d.VVVV != 0 && r.attr&attrVVVV == 0 {
			return false
		}
	case EncEVEX:
		if !d.legalEVEX(r) {
			return false
		}
	}
	if d.Mode == Mode32 {
		d.VVVV &= 7 // ignored, but where vvvv is not used
	}
	if r.attr&attrVSIB != 0 && !d.legalGather(r) || r.attr&attrUnique != 0 && !d.legalUnique(r) {
		return false
	}
	return r.attr&attrRegs == 0 || d.legalRegs(r)
}

// legalRegs refuses registers that do not exist.
func (d *decoder) legalRegs(r *row) bool {
	for _, o := range r.ops[:3] {
		ok := true
		switch o & opPlace {
		case opCR:
			const exist = 1<<0 | 1<<2 | 1<<3 | 1<<4 | 1<<8
			ok = exist>>d.regReg()&1 != 0
		case opDR, opEReg:
			ok = d.regReg() < 8
		case opTile:
			ok = d.rmReg() < 8
		case opEV:
			ok = d.VVVV < 8
		}
		if !ok {
			return false
		}
	}
	return true
}

// legalGather refuses a gather whose registers overlap (SDM: #UD). A scatter has
// no destination register, a VEX gather has its mask in vvvv.
func (d *decoder) legalGather(r *row) bool {
	if r.ops[0]&opPlace != opXReg {
		return true
	}
	index := d.extended(d.SIB>>3&7, RexX, 0)
	if d.Enc == EncEVEX {
		index |= Reg(d.VVVV & 16)
		return index != d.regReg()
	}
	mask := Reg(d.VVVV)
	return index != d.regReg() && index != mask && mask != d.regReg()
}

// legalUnique refuses a destination that is also a source; of tiles, any two
// that are the same.
func (d *decoder) legalUnique(r *row) bool {
	dst, v := d.regReg(), Reg(d.VVVV)
	if r.ops[0]&opPlace == opEReg {
		return dst != d.rmReg() && dst != v && d.rmReg() != v
	}
	return dst != v && (d.HasMem() || dst != d.vectorRM())
}

// vectorRM is the vector register that ModRM.rm names with EVEX: X is its
// highest bit.
func (d *decoder) vectorRM() Reg {
	return Reg(d.ModRM&7 | bit(d.Prefixes, RexB)<<3 | bit(d.Prefixes, RexX)<<4)
}

// legalEVEX checks the fields that only EVEX has.
func (d *decoder) legalEVEX(r *row) bool {
	if d.vl == 3 || d.Map == 4 && d.vl != 0 || d.Mode == Mode32 && d.VVVV&16 != 0 {
		return false
	}
	if r.attr&attrCC != 0 {
		return d.Ctl&(evexZ|evexLL|evexB) == 0
	}
	vvvv := d.VVVV
	if r.attr&attrVSIB != 0 {
		vvvv &= 15 // the fifth bit belongs to the index
	}
	named := r.attr&attrVVVV != 0 || r.attr&attrND != 0 && d.Ctl&evexB != 0
	if vvvv != 0 && !named {
		return false
	}
	aaa := d.Ctl & evexAAA
	if r.attr&attrNF != 0 {
		aaa &^= evexNF
	}
	if aaa != 0 && r.attr&attrMask == 0 || aaa == 0 && r.attr&attrMaskReq != 0 {
		return false
	}
	if d.Ctl&evexZ != 0 && (r.attr&attrZero == 0 || aaa == 0 || d.HasMem() && r.ops[0]&accWrite != 0) {
		return false // no zeroing without a mask, nor of memory
	}
	if d.Prefixes&(RexB4|RexX4) != 0 && !d.HasMem() && !d.legalAPX(r) {
		return false
	}
	if d.Ctl&evexB == 0 || r.attr&(attrND|attrND0) != 0 {
		return true
	}
	if d.HasMem() {
		return r.elem != scaleNone
	}
	return r.attr&(attrRound|attrSAE) != 0
}

// legalAPX reports whether ModRM.rm names a general register, and B4 is the only
// bit that extends it: a vector register's fifth bit is X.
func (d *decoder) legalAPX(r *row) bool {
	for _, o := range r.ops {
		if p := o & opPlace; p == opRM || p == opR {
			return d.Prefixes&RexX4 == 0
		}
	}
	return false
}
