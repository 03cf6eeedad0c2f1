package x86

import "strings"

// knownDifference is a way in which Decode and Zydis 4.0 differ on purpose.
type knownDifference struct {
	what string // the difference, or empty for any
	why  string
	is   func(q *question, i *Inst, err error, a *answer) bool
}

// knownDifferences is the whole list.
var knownDifferences = []knownDifference{
	{"refuses", "a near branch with a 66 prefix has no length that all processors agree on",
		func(q *question, i *Inst, err error, a *answer) bool { return err == ErrAmbiguous }},
	{"", "Knights Corner's instructions are reserved everywhere else",
		func(q *question, i *Inst, err error, a *answer) bool { return a.Facts&zydisKNC != 0 }},
	{"accepts", "newer than Zydis 4.0",
		func(q *question, i *Inst, err error, a *answer) bool { return newerThanZydis(i) }},
	{"accepts", "MPX: a processor without it takes any operand, and does nothing",
		func(q *question, i *Inst, err error, a *answer) bool { return strings.HasPrefix(i.Mnemonic(), "bnd") }},
	{"read", "hints and traps have operands that nobody reads",
		func(q *question, i *Inst, err error, a *answer) bool { return noAccess(a.mnemonic()) }},
	{"mem-read", "hints and traps have operands that nobody reads",
		func(q *question, i *Inst, err error, a *answer) bool { return noAccess(a.mnemonic()) }},
	{"read", "xor, sub and sbb of a register with itself do not depend on it",
		func(q *question, i *Inst, err error, a *answer) bool {
			n := i.Mnemonic()
			return (n == "xor" || n == "sub" || n == "sbb") && i.ModRM >= 0xc0 && i.ModRM>>3&7 == i.ModRM&7
		}},
	{"disp-value", "Zydis names r13 in an address that has a REX.B and a 67 prefix but no base",
		func(q *question, i *Inst, err error, a *answer) bool {
			return i.AddrSize == 4 && i.SIBOff != 0 && i.ModRM < 0x40 && i.SIB&7 == 5 && i.Prefixes&RexB != 0
		}},
	{"accepts", "W is ignored in 32-bit mode; Zydis refuses some conversions with it",
		func(q *question, i *Inst, err error, a *answer) bool {
			return i.Mode == Mode32 && i.Enc == EncEVEX && i.Prefixes&RexW != 0 && strings.HasPrefix(i.Mnemonic(), "vcvt")
		}},
	{"branch", "some kinds are finer here than in Zydis, or coarser",
		func(q *question, i *Inst, err error, a *answer) bool {
			switch i.Mnemonic() {
			case "int", "rsm", "sysexit", "sysret", "xabort", "xend", "bound":
				return true
			}
			return false
		}},
	{"read", "Zydis names r13 in an address that has a REX.B and a 67 prefix but no base",
		func(q *question, i *Inst, err error, a *answer) bool {
			return i.AddrSize == 4 && i.SIBOff != 0 && i.ModRM < 0x40 && i.SIB&7 == 5 && i.Prefixes&RexB != 0
		}},
	{"write", "Zydis calls the operands of llwpcb, lwpins and lwpval destinations",
		func(q *question, i *Inst, err error, a *answer) bool { return i.Enc == EncXOP && i.Opcode == 0x12 }},
	{"flags-read", "the ZF that repe and repne test is the instruction's own",
		func(q *question, i *Inst, err error, a *answer) bool {
			n := i.Mnemonic()
			return n == "cmps" || n == "scas"
		}},
	{"flags-must", "vptest and vtest clear OF, SF, AF and PF, as ptest does (SDM)",
		func(q *question, i *Inst, err error, a *answer) bool {
			n := i.Mnemonic()
			return n == "vptest" || strings.HasPrefix(n, "vtestp")
		}},
}

// known is why a difference is as it should be, or empty.
func known(what string, q *question, i *Inst, err error, a *answer) string {
	for _, k := range knownDifferences {
		if (k.what == what || k.what == "") && k.is(q, i, err, a) {
			return k.why
		}
	}
	return ""
}

// noAccess reports whether an instruction has operands for show.
func noAccess(name string) bool {
	switch name {
	case "nop", "ud0", "ud1", "cldemote", "invlpg":
		return true
	}
	return strings.Contains(name, "prefetch") || strings.Contains(name, "pf0") || strings.Contains(name, "pf1")
}

// newerThanZydis reports whether an instruction came after Zydis 4.0 (2022).
func newerThanZydis(i *Inst) bool {
	if i.Enc == EncREX2 || i.Prefixes&(RexB4|RexX4) != 0 {
		return true // APX
	}
	if i.Enc == EncEVEX && (i.Map == 4 || i.Prefixes&RexR4 != 0 || i.VVVV >= 16 || promoted(i.Map, i.Opcode)) {
		return true // APX: general registers 16 to 31
	}
	return strings.Contains(newer, " "+i.Mnemonic()+" ") || strings.HasPrefix(i.Mnemonic(), "cmp") && strings.HasSuffix(i.Mnemonic(), "xadd")
}

const newer = " aadd aand aor axor " + // RAO-INT
	"erets eretu " + // FRED
	"wrmsrns rdmsrlist wrmsrlist urdmsr uwrmsr " +
	"tileloaddrs tileloaddrst1 tdpfp16ps tcmmimfp16ps tcmmrlfp16ps " + // AMX
	"vbcstnebf162ps vbcstnesh2ps vcvtneebf162ps vcvtneeph2ps vcvtneobf162ps vcvtneoph2ps vcvtneps2bf16 " + // AVX-NE-CONVERT
	"vpdpbssd vpdpbssds vpdpbsud vpdpbsuds vpdpbuud vpdpbuuds " + // AVX-VNNI-INT8
	"vpdpwsud vpdpwsuds vpdpwusd vpdpwusds vpdpwuud vpdpwuuds " + // AVX-VNNI-INT16
	"vpmadd52huq vpmadd52luq " + // AVX-IFMA
	"vsha512msg1 vsha512msg2 vsha512rnds2 vsm3msg1 vsm3msg2 vsm3rnds2 vsm4key4 vsm4rnds4 " +
	"rmpquery "
