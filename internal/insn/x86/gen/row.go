package main

import (
	"fmt"
	"strings"
)

// parse fills the row from both sides of a line.
func (r *row) parse(f *file, left, right string) error {
	words := strings.Fields(left)
	var err error
	if r.opcodes, err = ranges(words[0], 16); err != nil {
		return err
	}
	for _, w := range words[1:] {
		if err := r.cond(w); err != nil {
			return err
		}
	}
	right, attrs, _ := strings.Cut(right, ";")
	words = strings.Fields(right)
	if len(words) == 0 {
		return fmt.Errorf("row without a mnemonic")
	}
	r.name = words[0]
	for _, w := range words[1:] {
		if err := r.operand(w); err != nil {
			return err
		}
	}
	for _, w := range strings.Fields(attrs) {
		if err := r.attribute(f, w); err != nil {
			return err
		}
	}
	if len(r.ops) > 6 {
		return fmt.Errorf("%s: more than 6 operands", r.name)
	}
	for by := range r.conds {
		switch by {
		case "byMod", "byReg", "byRM":
			r.attr("attrModRM")
		}
	}
	return nil
}

// attr adds an attribute once.
func (r *row) attr(name string) {
	for _, a := range r.attrs {
		if a == name {
			return
		}
	}
	r.attrs = append(r.attrs, name)
}

// cond reads one condition; several values of one kind are written with commas.
func (r *row) cond(w string) error {
	if w[0] == '/' || w[0] == '@' {
		values, err := ranges(w[1:], 8)
		if err != nil {
			return err
		}
		by := map[byte]string{'/': "byReg", '@': "byRM"}[w[0]]
		r.conds.restrict(by, bitSet(values))
		return nil
	}
	by, values := "", uint(0)
	for _, part := range strings.Split(w, ",") {
		c, ok := condNames[part]
		if !ok || by != "" && by != c.by {
			return fmt.Errorf("bad condition %q", w)
		}
		by, values = c.by, values|1<<c.value
	}
	r.conds.restrict(by, values)
	return nil
}

func bitSet(values []int) uint {
	var s uint
	for _, v := range values {
		s |= 1 << v
	}
	return s
}

var condNames = map[string]struct {
	by    string
	value int
}{
	"np": {"byPrefix", 0}, "66": {"byPrefix", 1}, "f3": {"byPrefix", 2}, "f2": {"byPrefix", 3},
	"m64": {"byMode", 0}, "m32": {"byMode", 1},
	"o16": {"byOpSize", 0}, "o32": {"byOpSize", 1}, "o64": {"byOpSize", 2},
	"a16": {"byAddrSize", 0}, "a32": {"byAddrSize", 1}, "a64": {"byAddrSize", 2},
	"rexb0": {"byRexB", 0}, "rexb1": {"byRexB", 1},
	"w0": {"byW", 0}, "w1": {"byW", 1},
	"l0": {"byL", 0}, "l1": {"byL", 1}, "l2": {"byL", 2},
	"mem": {"byMod", 0}, "reg": {"byMod", 1},
	"b0": {"byBcast", 0}, "b1": {"byBcast", 1},
}

// operand reads one operand: access mark, place, size.
func (r *row) operand(w string) error {
	if imm, ok := immNames[w]; ok {
		return r.immediate(imm)
	}
	acc := "accRead"
	if w == "push" {
		acc = "accWrite"
	}
	switch w[0] {
	case '=':
		acc = "accWrite"
	case '+':
		acc = "accRead|accWrite"
	case '?':
		acc = "accCond"
	case '~':
		acc = ""
	}
	if strings.IndexByte("=+?~", w[0]) >= 0 {
		w = w[1:]
	}
	expr, err := r.place(w)
	if err != nil {
		return err
	}
	if acc != "" {
		expr += "|" + acc
	}
	r.ops = append(r.ops, expr)
	return nil
}

// immediate adds an immediate to those the row has.
func (r *row) immediate(imm string) error {
	switch {
	case r.imm == "":
		r.imm = imm
	case r.imm == "imm8" && imm == "imm8":
		r.imm = "imm8x2"
	case r.imm == "imm16" && imm == "imm8":
		r.imm = "imm16x8"
	default:
		return fmt.Errorf("no layout for %s and %s", r.imm, imm)
	}
	return nil
}

var immNames = map[string]string{
	"Ib": "imm8", "Iw": "imm16", "Id": "imm32", "Iq": "imm64", "Iz": "immZ", "Iv": "immV", "L": "imm8",
	"Jb": "immRel8", "Jz": "immRelZ", "Fp": "immFar",
}

// place is the Go expression of an operand's place and size.
func (r *row) place(w string) (string, error) {
	if reg, size, ok := strings.Cut(w, "."); ok {
		n, known := fixedRegs[reg]
		s, sized := sizes[size]
		if !known || !sized {
			return "", fmt.Errorf("bad register %q", w)
		}
		return fmt.Sprintf("opFixed|%s|%d<<opFixedShift", s, n), nil
	}
	if expr, ok := wordPlaces[w]; ok {
		if w == "O" {
			r.imm = "immMoffs"
		}
		return expr, nil
	}
	return r.letterPlace(w)
}

// letterPlace is place for an operand that a letter names, perhaps with k or t
// before it.
func (r *row) letterPlace(w string) (string, error) {
	p, ok := letterPlaces[w[0]]
	if w[0] == 'k' || w[0] == 't' {
		p, ok = letterPlaces[w[1]]
		if e, ok := eightRegs[w[0]][p.expr]; ok {
			p.expr = e
		}
		w = w[1:]
		r.attr("attrRegs")
	}
	if !ok {
		return "", fmt.Errorf("unknown operand %q", w)
	}
	if p.modrm {
		r.attr("attrModRM")
	}
	if p.expr == "opCR" || p.expr == "opDR" {
		r.attr("attrRegs")
	}
	if p.attr != "" {
		r.attr(p.attr)
	}
	if p.mod >= 0 {
		r.conds.restrict("byMod", 1<<p.mod)
	}
	if !p.sized {
		if len(w) > 1 {
			return "", fmt.Errorf("operand %q takes no size", w)
		}
		return p.expr, nil
	}
	s, ok := sizes[w[1:]]
	if !ok {
		return "", fmt.Errorf("operand %q: bad size", w)
	}
	return p.expr + "|" + s, nil
}

var sizes = map[string]string{
	"b": "sz8", "w": "sz16", "d": "sz32", "q": "sz64", "v": "szV", "y": "szY", "a": "szA",
}

var fixedRegs = map[string]int{
	"a": 0, "c": 1, "d": 2, "b": 3, "sp": 4, "bp": 5, "si": 6, "di": 7,
	"r8": 8, "r9": 9, "r10": 10, "r11": 11,
}

var wordPlaces = map[string]string{
	"X": "opSrc", "Y": "opDst", "O": "opMoffs", "push": "opPush", "pop": "opPop", "@": "opMemIn",
}

// eightRegs are the places of mask and tile registers, where they are checked:
// REX.B means nothing to a mask.
var eightRegs = map[byte]map[string]string{
	'k': {"opXReg": "opEReg", "opXV": "opEV"},
	't': {"opX": "opTile", "opXReg": "opEReg", "opXV": "opEV"},
}

// letterPlaces are the operands that a letter names; mod is what they demand of
// ModRM.mod: 0 memory, 1 register, -1 nothing.
var letterPlaces = map[byte]struct {
	expr  string
	sized bool
	modrm bool
	mod   int
	attr  string
}{
	'E': {"opRM", true, true, -1, ""},
	'R': {"opR", true, true, 1, ""},
	'M': {"opM", false, true, 0, ""},
	'G': {"opReg", true, true, -1, ""},
	'Z': {"opOpc", true, false, -1, ""},
	'B': {"opV", true, true, -1, "attrVVVV"},
	'W': {"opXM", false, true, -1, ""},
	'U': {"opX", false, true, 1, ""},
	'V': {"opXReg", false, true, -1, ""},
	'H': {"opXV", false, true, -1, "attrVVVV"},
	'S': {"opSeg", false, true, -1, ""},
	'C': {"opCR", false, true, -1, "attrModReg"},
	'D': {"opDR", false, true, -1, "attrModReg"},
}

// attribute reads one word after the semicolon.
func (r *row) attribute(f *file, w string) error {
	if words, ok := f.aliases[w]; ok {
		for _, w := range words {
			if err := r.attribute(f, w); err != nil {
				return err
			}
		}
		return nil
	}
	if k, v, ok := strings.Cut(w, "="); ok {
		return r.valued(k, v)
	}
	if a, ok := attrNames[w]; ok {
		r.attr(a)
		return nil
	}
	for n, c := range f.flags {
		if c.name == w {
			if r.flags != 0 {
				return fmt.Errorf("%s: two flag classes", r.name)
			}
			r.flags = n
			return nil
		}
	}
	return fmt.Errorf("unknown attribute %q", w)
}

// valued reads br=, n= and b=.
func (r *row) valued(k, v string) error {
	var table map[string]string
	var dst *string
	switch k {
	case "br":
		table, dst = branches, &r.branch
	case "n":
		table, dst = scales, &r.scale
	case "b":
		table, dst = scales, &r.elem
	}
	c, ok := table[v]
	if !ok {
		return fmt.Errorf("bad attribute %s=%s", k, v)
	}
	*dst = c
	return nil
}

var attrNames = map[string]string{
	"modrm": "attrModRM", "modreg": "attrModReg", "lock": "attrLock", "rep": "attrRep",
	"d64": "attrD64", "f64": "attrF64", "div": "attrDiv", "fp": "attrFP", "priv": "attrPriv", "all": "attrAll",
	"count": "attrCount", "idiom": "attrIdiom", "vsib": "attrVSIB", "sib": "attrSIB", "k": "attrMask",
	"z": "attrZero", "kreq": "attrMaskReq", "er": "attrRound", "sae": "attrSAE", "nomem16": "attrNoMem16", "uniq": "attrUnique",
	"nd": "attrND", "nd0": "attrND0", "nf": "attrNF", "cc": "attrCC",
}

var branches = map[string]string{
	"jmp": "BranchJmp", "jcc": "BranchJcc", "loop": "BranchLoop", "call": "BranchCall",
	"jmpind": "BranchJmpInd", "callind": "BranchCallInd", "ret": "BranchRet", "farjmp": "BranchFarJmp",
	"farcall": "BranchFarCall", "farret": "BranchFarRet", "iret": "BranchIRet", "syscall": "BranchSyscall",
	"trap": "BranchTrap", "xbegin": "BranchXBegin", "abs": "BranchAbs",
}

var scales = map[string]string{
	"1": "scale1", "2": "scale2", "4": "scale4", "8": "scale8", "16": "scale16", "32": "scale32", "64": "scale64",
	"w": "scaleW", "y": "scaleY", "vl": "scaleVL", "vl/2": "scaleVL2", "vl/4": "scaleVL4", "vl/8": "scaleVL8", "dup": "scaleDup",
}
