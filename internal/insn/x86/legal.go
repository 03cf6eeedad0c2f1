package x86

// legal checks what the decision tree does not: prefixes and fields that the
// opcode does not allow, and registers that do not exist.
func (d *decoder) legal(r *row) bool {
	if d.Prefixes&PrefixLock != 0 && (r.attr&attrLock == 0 || !d.HasMem()) {
		return false
	}
	switch d.Enc {
	case EncVEX, EncXOP:
		return d.VVVV == 0 || r.attr&attrVVVV != 0
	case EncEVEX:
		return d.legalEVEX(r)
	}
	return d.legalRegs(r)
}

// legalRegs refuses segment, control and debug registers that do not exist.
func (d *decoder) legalRegs(r *row) bool {
	for _, o := range r.ops[:2] {
		n := d.ModRM>>3&7 | bit(d.Prefixes, RexR)<<3
		switch o & opPlace {
		case opCR:
			const exist = 1<<0 | 1<<2 | 1<<3 | 1<<4 | 1<<8
			return exist>>n&1 != 0
		case opDR:
			return n < 8
		}
	}
	return true
}

// legalEVEX checks the fields that only EVEX has.
func (d *decoder) legalEVEX(r *row) bool {
	vvvv := d.VVVV
	if r.attr&attrVSIB != 0 {
		vvvv &= 15 // the fifth bit belongs to the index
	}
	if vvvv != 0 && r.attr&attrVVVV == 0 {
		return false
	}
	aaa := d.Ctl & evexAAA
	if aaa != 0 && r.attr&attrMask == 0 || aaa == 0 && r.attr&attrMaskReq != 0 {
		return false
	}
	if d.Ctl&evexZ != 0 && (r.attr&attrZero == 0 || aaa == 0) {
		return false
	}
	if d.Ctl&evexB == 0 {
		return true
	}
	if d.HasMem() {
		return r.elem != scaleNone
	}
	return r.attr&(attrRound|attrSAE) != 0
}
