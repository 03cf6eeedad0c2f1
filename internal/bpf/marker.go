package bpf

import (
	"github.com/cilium/ebpf/asm"
)

// helperMarkerArg, with the number of an argument added, stands for the value of an argument of a USDT
// probe. Where that is differs from place to place, so a program with such calls is a template: package
// usdt makes a program of it for each place. No program that is verified has any.
const helperMarkerArg asm.BuiltinFunc = 0x20000

// MaxMarkerArgs is the number of arguments that a USDT probe may have (sys/sdt.h: STAP_PROBE12).
const MaxMarkerArgs = 12

// MarkerArg puts argument number n of a USDT probe into r0. Register r1 points to the context; r1 to r5
// and the 8 bytes of the stack at slot are destroyed.
func MarkerArg(n int, slot int16) asm.Instruction {
	in := (helperMarkerArg + asm.BuiltinFunc(n)).Call()
	in.Offset = slot
	return in
}

// IsMarkerArg reads what MarkerArg made.
func IsMarkerArg(in asm.Instruction) (n int, slot int16, ok bool) {
	if !in.IsBuiltinCall() {
		return 0, 0, false
	}
	n = int(in.Constant - int64(helperMarkerArg))
	return n, in.Offset, n >= 0 && n < MaxMarkerArgs
}
