package bpf

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cilium/ebpf/asm"
	"github.com/google/go-cmp/cmp"
)

// refusal is a program that must be refused, and why: the word for it, the
// instruction, and a part of the text.
type refusal struct {
	word Reason
	at   int    // -1: at the access that it is all about
	text string // part of the reason
	prog string
}

// Beginnings of programs.
const (
	zeroWord = `*(u64 *)(r10 -8) = 0; `
	lookupR0 = zeroWord + `r1 = map keyed; r2 = r10; r2 += -8; call map_cell; `    // r0 may be 0
	cellR0   = lookupR0 + `if r0 == 0 goto out; `                                  // r0 points to 16 bytes
	inCell   = `; out: r0 = 0; exit`                                               // the end of it
	reserve  = `r6 = r1; r1 = map events; r2 = 16; r3 = 0; call ringbuf_reserve; ` // r0 may be 0
	recordR0 = reserve + `if r0 == 0 goto out; `                                   // r0 points to 16 bytes
	number   = `r6 = *(u64 *)(r1 +112); `                                          // r6 is any number
)

var refusals = []refusal{
	// What was never written.
	{ReasonUninitialised, 0, "r0 may not have been written", `exit`},
	{ReasonUninitialised, 0, "r5 may not", `r0 = r5; exit`},
	{ReasonUninitialised, 0, "r2 may not", `w0 = w2; exit`},
	{ReasonUninitialised, 0, "r3 may not", `r3 += 1; r0 = 0; exit`},
	{ReasonUninitialised, 1, "r4 may not", `r3 = 1; r3 += r4; r0 = 0; exit`},
	{ReasonUninitialised, 0, "r6 may not", `r6 = -r6; r0 = 0; exit`},
	{ReasonUninitialised, 0, "r7 may not", `r7 = be32 r7; r0 = 0; exit`},
	{ReasonUninitialised, 0, "r8 may not", `r0 = (s8) r8; exit`},
	{ReasonUninitialised, 3, "r3 may not", `r3 = 1; call get_current_pid_tgid; r4 = 0; r0 = r3; exit`},
	{ReasonUninitialised, 1, "r1 may not", `call get_current_pid_tgid; r0 = r1; exit`},
	{ReasonUninitialised, 1, "r7 may not", `r0 = 0; if r7 == 0 goto out; out: exit`},
	{ReasonUninitialised, 1, "r9 may not", `r0 = 0; if r0 == r9 goto out; out: exit`},
	{ReasonUninitialised, 3, "r0 may not", `r6 = *(u64 *)(r1 +112); if r6 == 0 goto out; r0 = 1; out: exit`},
	{ReasonUninitialised, 0, "r9 may not", `r0 = *(u64 *)(r9 +0); exit`},
	{ReasonUninitialised, 0, "r2 may not", `*(u64 *)(r2 +0) = 1; r0 = 0; exit`},
	{ReasonUninitialised, 0, "r4 may not", `*(u64 *)(r10 -8) = r4; r0 = 0; exit`},
	{ReasonUninitialised, 1, "r5 may not", `*(u64 *)(r10 -8) = 1; lock add *(u64 *)(r10 -8), r5; r0 = 0; exit`},
	{ReasonUninitialised, 2, "r0 may not", `r2 = 1; *(u64 *)(r10 -8) = 1; lock cmpxchg *(u64 *)(r10 -8), r2; r0 = 0; exit`},
	{ReasonUninitialised, 1, "r2 may not", `r1 = map keyed; call map_cell; r0 = 0; exit`},
	{ReasonUninitialised, 5, "r4 may not", zeroWord + `r3 = 8; r2 = r10; r2 += -8; r1 = ring; call ringbuf_output; r0 = 0; exit`},
	{ReasonUninitialised, 0, "r6 may not", `callx r6; r0 = 0; exit`},
	{ReasonUninitialised, 2, "r1 may not", `r1 = 7; call @f; r0 = r1; exit; f: r0 = 0; exit`},
	{ReasonUninitialised, 3, "r6 may not", `r6 = 7; call @f; exit; f: r0 = r6; exit`},
	{ReasonUninitialised, 2, "r0 may not", `call @f; exit; f: exit`},
	{ReasonUninitialised, 3, "r2 may not", `r1 = 7; call @f; exit; f: r0 = r2; exit`},
	{ReasonUninitialised, 7, "r3 may not", `r1 = 3; r2 = func f; r3 = 0; r4 = 0; call loop; r0 = 0; exit; f: r0 = r3; exit`},
	{ReasonUninitialised, 3, "r6 may not", `r0 = 0; r2 = 0; l: r2 += 1; r0 += r6; r6 = 1; if r2 != 3 goto l; exit`},
	{ReasonUninitialisedStack, 0, "the byte at r10-8", `r0 = *(u64 *)(r10 -8); exit`},
	{ReasonUninitialisedStack, 1, "the byte at r10-4", `*(u32 *)(r10 -8) = 0; r0 = *(u64 *)(r10 -8); exit`},
	{ReasonUninitialisedStack, 1, "the byte at r10-1", `*(u32 *)(r10 -5) = 0; r0 = *(u8 *)(r10 -1); exit`},
	{ReasonUninitialisedStack, 1, "the byte at r10-16", `*(u64 *)(r10 -8) = 0; r0 = *(u64 *)(r10 -16); exit`},
	{ReasonUninitialisedStack, 6, "the byte at r10-7", number + `r6 &= 7; *(u8 *)(r10 -8) = 0; r2 = r10; r2 += -8; r2 += r6; r0 = *(u8 *)(r2 +0); exit`},
	{ReasonUninitialisedStack, 3, "the byte at r10-8", number + `if r6 == 0 goto a; *(u64 *)(r10 -8) = 0; a: r0 = *(u64 *)(r10 -8); exit`},
	{ReasonUninitialisedStack, 4, "the byte at r10-4", `*(u32 *)(r10 -8) = 7; r1 = map keyed; r2 = r10; r2 += -8; call map_cell; r0 = 0; exit`},
	{ReasonUninitialisedStack, 7, "the byte at r10-12", `*(u64 *)(r10 -8) = 7; *(u32 *)(r10 -16) = 1; r1 = ring; r2 = r10; r2 += -16; r3 = 16; r4 = 0; call ringbuf_output; r0 = 0; exit`},
	{ReasonUninitialisedStack, 1, "the byte at r10-8", `r2 = 1; lock add *(u64 *)(r10 -8), r2; r0 = 0; exit`},
	{ReasonUninitialisedStack, 2, "the byte at r10-8", `call @f; exit; f: r0 = *(u64 *)(r10 -8); exit`},
	{ReasonUninitialisedStack, 4, "the byte at r10-16", `r1 = r10; r1 += -16; call @f; exit; f: r0 = *(u64 *)(r1 +0); exit`},
	{ReasonUninitialisedStack, 7, "the byte at r10-64", number + `r3 = r6; r6 &= 7; r1 = r10; r1 += -64; r2 = r6; call probe_read_user; r0 = *(u64 *)(r10 -64); exit`},
	{ReasonUninitialisedStack, 4, "the byte at r10-24", `*(u64 *)(r10 -8) = 0; *(u64 *)(r10 -16) = 0; r1 = r10; r1 += -24; r0 = *(u8 *)(r1 +0); exit`},

	// Memory.
	{ReasonMaybeNull, 5, "r0 (a pointer to a value of a map, or 0) may be 0", lookupR0 + `r0 = *(u64 *)(r0 +0); exit`},
	{ReasonMaybeNull, 5, "may be 0", lookupR0 + `*(u64 *)(r0 +0) = 1; r0 = 0; exit`},
	{ReasonMaybeNull, 6, "may be 0", lookupR0 + `r1 = 1; lock add *(u64 *)(r0 +0), r1; r0 = 0; exit`},
	{ReasonMaybeNull, 5, "may be 0", lookupR0 + `r0 += 8; r0 = 0; exit`},
	{ReasonNotPointer, 10, "r6 is a number", lookupR0 + `if r0 != 0 goto a; goto b; a: r0 = 0; exit; b: r6 = r0; lock add *(u64 *)(r6 +0), r6; exit`},
	{ReasonNotPointer, 6, "r0 is a number, not a pointer: 0", lookupR0 + `if r0 != 0 goto out; r1 = *(u64 *)(r0 +0)` + inCell},
	{ReasonMaybeNull, 5, "(a pointer to a record, or 0) may be 0", reserve + `*(u64 *)(r0 +0) = 1; r0 = 0; exit`},
	{ReasonMaybeNull, 7, "may be 0", reserve + `r1 = r0; r2 = 0; call ringbuf_submit; r0 = 0; exit`},
	{ReasonMaybeNull, 8, "r2 (a pointer to a value of a map, or 0) may be 0", lookupR0 + `r2 = r0; r1 = map keyed; r3 = r10; call map_cell; r0 = 0; exit`},
	{ReasonMaybeNull, 8, "r1 (a pointer to a value of a map, or 0) may be 0", lookupR0 + `r1 = r0; r2 = 8; r3 = 0; call probe_read_user; r0 = 0; exit`},
	{ReasonMaybeNull, 11, "r7 (a pointer to a value of a map, or 0)", lookupR0 + `r7 = r0; r1 = map keyed; r2 = r10; r2 += -8; call map_cell; if r0 == 0 goto out; r1 = *(u64 *)(r7 +0)` + inCell},
	{ReasonMaybeNull, -1, "r8 (a pointer to a value of a map, or 0)", number + `*(u64 *)(r10 -8) = r6; r1 = r10; r1 += -8; call @f; r7 = r0; r1 = r10; r1 += -8; call @f; r8 = r0; if r7 == 0 goto out; r0 = *(u64 *)(r8 +0); exit; out: r0 = 0; exit
		f: r2 = r1; r1 = map hash; call map_lookup_elem; exit`},
	{ReasonOutside, -1, "1 byte at", number + `r9 = *(u64 *)(r1 +104); *(u64 *)(r10 -8) = 0; r6 &= 255; r7 = r6; if r9 == 0 goto a; r7 += 1; goto b; a: r7 += 100; b: if r6 > 3 goto out; r2 = r10; r2 += -8; r2 += r7; r0 = *(u8 *)(r2 +0); exit; out: r0 = 0; exit`},
	{ReasonUninitialisedStack, 2, "the byte at r10-4", `*(u64 *)(r10 -8) = r1; *(u8 *)(r10 -8) = 5; r0 = *(u32 *)(r10 -4); exit`},
	// What was tested on one path is not what was tested on another: r6 and r7
	// come from different lookups, or are known to be there.
	{ReasonMaybeNull, -1, "r7 (a pointer to a value of a map, or 0)", number + `*(u32 *)(r10 -8) = r6; *(u32 *)(r10 -16) = 0; if r6 == 0 goto known; r1 = map one; r2 = r10; r2 += -8; call map_cell; r8 = r0
		r1 = map one; r2 = r10; r2 += -8; call map_cell; r7 = r0; r6 = r8; goto both
		known: r1 = map one; r2 = r10; r2 += -16; call map_cell; r6 = r0; r7 = r0
		both: if r6 == 0 goto out; r0 = *(u64 *)(r7 +0); exit; out: r0 = 0; exit`},
	{ReasonMaybeNull, -1, "r7 (a pointer to a value of a map, or 0)", number + `*(u32 *)(r10 -8) = r6; if r6 == 0 goto known; r1 = map array; r2 = r10; r2 += -8; call map_lookup_elem; r8 = r0
		r1 = map array; r2 = r10; r2 += -8; call map_lookup_elem; r7 = r0; r6 = r8; goto both
		known: r6 = value array +0; r7 = r6
		both: if r6 == 0 goto out; r0 = *(u64 *)(r7 +0); exit; out: r0 = 0; exit`},
	{ReasonNotPointer, 1, "r6 is a number", number + `r0 = *(u64 *)(r6 +0); exit`},
	{ReasonNotPointer, 1, "r6 is a number", number + `*(u32 *)(r6 +0) = 0; r0 = 0; exit`},
	{ReasonNotPointer, 1, "r2 is a map", `r2 = map keyed; r0 = *(u64 *)(r2 +0); exit`},
	{ReasonNotPointer, 1, "r2 is the ring", `r2 = ring; r0 = *(u64 *)(r2 +0); exit`},
	{ReasonNotPointer, 1, "r2 is a function", `r2 = func f; r0 = *(u64 *)(r2 +0); exit; f: r0 = 0; exit`},
	{ReasonNotPointer, 1, "r2 is a map", `r2 = map keyed; *(u64 *)(r2 +0) = 0; r0 = 0; exit`},
	{ReasonNotPointer, 2, "r6 is a number", number + `r2 = 1; lock add *(u64 *)(r6 +0), r2; r0 = 0; exit`},
	{ReasonNotPointer, 7, "r1 is a number", lookupR0 + `if r0 != 0 goto out; r1 = r0; r1 = *(u64 *)(r1 +0)` + inCell},
	{ReasonOutside, 0, "8 bytes at 0 of the stack", `r0 = *(u64 *)(r10 +0); exit`},
	{ReasonOutside, 0, "4 bytes at 0 of the stack", `*(u32 *)(r10 +0) = 0; exit`},
	{ReasonOutside, 0, "8 bytes at -520 of the stack", `*(u64 *)(r10 -520) = 0; r0 = 0; exit`},
	{ReasonOutside, 0, "4 bytes at -3 of the stack", `*(u32 *)(r10 -3) = 0; r0 = 0; exit`},
	{ReasonOutside, 2, "1 byte at 0 of the stack", `r2 = r10; r2 += -8; *(u8 *)(r2 +8) = 0; r0 = 0; exit`},
	{ReasonOutside, 5, "1 byte at -8 to 7 of the stack", number + `r6 &= 15; r2 = r10; r2 += -8; r2 += r6; *(u8 *)(r2 +0) = 1; r0 = 0; exit`},
	{ReasonOutside, 5, "8 bytes at -8 to -1 of the stack", number + `r6 &= 7; r2 = r10; r2 += -8; r2 += r6; *(u64 *)(r2 +0) = 1; r0 = 0; exit`},
	{ReasonOutside, 6, "1 byte at 16 of a value of 16 bytes of map keyed", cellR0 + `r1 = *(u8 *)(r0 +16)` + inCell},
	{ReasonOutside, 6, "8 bytes at 9 of a value", cellR0 + `*(u64 *)(r0 +9) = 0` + inCell},
	{ReasonOutside, 6, "8 bytes at -8 of a value", cellR0 + `*(u64 *)(r0 -8) = 0` + inCell},
	{ReasonOutside, 7, "8 bytes at 16 of a value", cellR0 + `r1 = 1; lock add *(u64 *)(r0 +16), r1` + inCell},
	{ReasonOutside, 9, "1 byte at 8 to 23 of a value", cellR0 + `r1 = *(u64 *)(r0 +0); r1 &= 15; r0 += r1; *(u8 *)(r0 +8) = 0` + inCell},
	{ReasonOutside, 6, "8 bytes at 16 of a record of 16 bytes", recordR0 + `*(u64 *)(r0 +16) = 1; r1 = r0; r2 = 0; call ringbuf_submit` + inCell},
	{ReasonOutside, 6, "4 bytes at -4 of a record", recordR0 + `*(u32 *)(r0 -4) = 1; r1 = r0; r2 = 0; call ringbuf_submit` + inCell},
	{ReasonOutside, 1, "8 bytes at 60 of a value of 64 bytes of map array", `r1 = value array +56; r0 = *(u64 *)(r1 +4); exit`},
	{ReasonOutside, 1, "8 bytes at 64 of a value", `r1 = value array +64; *(u64 *)(r1 +0) = 1; r0 = 0; exit`},
	{ReasonOutside, 7, "of a key of 8 bytes", `r1 = map hash; r2 = func f; r3 = 0; r4 = 0; call for_each_map_elem; r0 = 0; exit; f: r1 = *(u64 *)(r2 +1); r0 = 0; exit`},
	{ReasonOutside, 8, "of a value of 32 bytes", `r1 = map hash; r2 = func f; r3 = 0; r4 = 0; call for_each_map_elem; r0 = 0; exit; f: r1 = 1; *(u64 *)(r3 +32) = r1; r0 = 0; exit`},
	{ReasonOutside, 4, "8 bytes at -4 of the stack", `r1 = map keyed; r2 = r10; r2 += -4; *(u32 *)(r10 -4) = 0; call map_cell; r0 = 0; exit`},
	{ReasonOutside, 6, "16 bytes at -8 of the stack", zeroWord + `r1 = ring; r2 = r10; r2 += -8; r3 = 16; r4 = 0; call ringbuf_output; r0 = 0; exit`},
	{ReasonOutside, 4, "64 bytes at -32 of the stack", `r3 = 0; r1 = r10; r1 += -32; r2 = 64; call probe_read_user; r0 = 0; exit`},
	{ReasonOutside, 9, "24 bytes at 0 of a value of 16 bytes", cellR0 + `r1 = r0; r2 = 24; r3 = 0; call probe_read_user` + inCell},
	{ReasonOutside, 4, "1 byte at 0 of the stack", `r1 = 0; l: r2 = r10; r2 += -64; r2 += r1; *(u8 *)(r2 +0) = 0; r1 += 1; if r1 != 65 goto l; r0 = 0; exit`},
	{ReasonUnbounded, 4, "r2 may point anywhere", number + `r2 = r10; r2 += -8; r2 += r6; *(u8 *)(r2 +0) = 1; r0 = 0; exit`},
	{ReasonUnbounded, 5, "may point anywhere", number + `if r6 s> 7 goto out; r2 = r10; r2 += -8; r2 += r6; *(u8 *)(r2 +0) = 1; out: r0 = 0; exit`},
	{ReasonUnbounded, 8, "r0 may point anywhere", cellR0 + `r1 = *(u64 *)(r0 +0); r0 += r1; *(u8 *)(r0 +0) = 0` + inCell},
	{ReasonUnbounded, 3, "is compared, but one of the pointers", number + `r2 = r10; r2 += r6; if r2 > r10 goto out; out: r0 = 0; exit`},
	{ReasonUnbounded, 4, "is compared, but it may point anywhere", number + `r2 = r10; r2 += r6; r0 = 0; if r2 == 0 goto out; out: exit`},
	{ReasonUnaligned, 2, "8 bytes at an offset that may not be a multiple of 8", `r2 = 1; *(u64 *)(r10 -12) = 1; lock add *(u64 *)(r10 -12), r2; r0 = 0; exit`},
	{ReasonUnaligned, 7, "4 bytes at an offset", cellR0 + `r1 = 1; lock add *(u32 *)(r0 +2), r1` + inCell},
	{ReasonUnaligned, 9, "8 bytes at an offset", cellR0 + `r1 = *(u64 *)(r0 +0); r1 &= 7; r0 += r1; lock add *(u64 *)(r0 +0), r1` + inCell},
	{ReasonContext, 0, "8 bytes at 120 of the context", `r0 = *(u64 *)(r1 +120); exit`},
	{ReasonContext, 0, "8 bytes at 136 of the context", `r0 = *(u64 *)(r1 +136); exit`},
	{ReasonContext, 0, "4 bytes at 144 of the context", `r0 = *(u32 *)(r1 +144); exit`},
	{ReasonContext, 0, "8 bytes at 160 of the context", `r0 = *(u64 *)(r1 +160); exit`},
	{ReasonContext, 0, "8 bytes at 4 of the context", `r0 = *(u64 *)(r1 +4); exit`},
	{ReasonContext, 0, "2 bytes at 7 of the context", `r0 = *(u16 *)(r1 +7); exit`},
	{ReasonContext, 0, "8 bytes at -8 of the context", `r0 = *(u64 *)(r1 -8); exit`},
	{ReasonContext, 0, "8 bytes at 216 of the context", `r0 = *(u64 *)(r1 +216); exit`},
	{ReasonContext, 1, "1 byte at 4096 of the context", `r1 += 4096; r0 = *(u8 *)(r1 +0); exit`},
	{ReasonContext, 3, "an offset that is not constant", number + `r6 &= 8; r1 += r6; r0 = *(u64 *)(r1 +0); exit`},
	{ReasonReadOnly, 0, "the context is read-only", `*(u64 *)(r1 +112) = 0; r0 = 0; exit`},
	{ReasonReadOnly, 1, "the context is read-only", `r2 = 3; *(u8 *)(r1 +0) = r2; r0 = 0; exit`},
	{ReasonReadOnly, 1, "the context is read-only", `r2 = 3; lock add *(u64 *)(r1 +0), r2; r0 = 0; exit`},
	{ReasonReadOnly, 8, "a map's key, which is read-only", `r1 = map hash; r2 = func f; r3 = 0; r4 = 0; call for_each_map_elem; r0 = 0; exit; f: r1 = 1; *(u64 *)(r2 +0) = r1; r0 = 0; exit`},
	{ReasonReadOnly, 10, "a map's key, which is read-only", `r1 = map hash; r2 = func f; r3 = 0; r4 = 0; call for_each_map_elem; r0 = 0; exit; f: r1 = r2; r2 = 8; r3 = 0; call probe_read_user; r0 = 0; exit`},

	// Pointers are no numbers.
	{ReasonFramePointer, 0, "the frame pointer is read-only", `r10 = 0; r0 = 0; exit`},
	{ReasonFramePointer, 0, "the frame pointer is read-only", `r10 += -8; r0 = 0; exit`},
	{ReasonFramePointer, 0, "the frame pointer is read-only", `r10 = *(u64 *)(r1 +0); r0 = 0; exit`},
	{ReasonFramePointer, 0, "the frame pointer is read-only", `r10 = map keyed; r0 = 0; exit`},
	{ReasonPointerPart, 0, "a part of r1 (the context) is taken", `w0 = w1; exit`},
	{ReasonPointerPart, 0, "a part of r1", `r0 = (s32) r1; exit`},
	{ReasonPointerPart, 0, "a part of r1", `w1 += 1; r0 = 0; exit`},
	{ReasonPointerPart, 1, "there is a pointer among the 4 bytes", `*(u64 *)(r10 -8) = r1; r0 = *(u32 *)(r10 -8); exit`},
	{ReasonPointerPart, 1, "there is a pointer among the 1 byte", `*(u64 *)(r10 -8) = r10; r0 = *(u8 *)(r10 -3); exit`},
	{ReasonPointerPart, 2, "there is a pointer among the 8 bytes at r10-12", `*(u64 *)(r10 -8) = r1; *(u64 *)(r10 -16) = 0; r0 = *(u64 *)(r10 -12); exit`},
	{ReasonPointerPart, 0, "a part of r1 (the context) is stored", `*(u32 *)(r10 -8) = r1; r0 = 0; exit`},
	{ReasonPointerPart, 0, "a part of r10", `*(u8 *)(r10 -8) = r10; r0 = 0; exit`},
	{ReasonPointerPart, 4, "there is a pointer among the 8 bytes at r10-8", `*(u64 *)(r10 -8) = r1; r1 = map keyed; r2 = r10; r2 += -8; call map_cell; r0 = 0; exit`},
	{ReasonPointerPart, 6, "there is a pointer among the 8 bytes", `*(u64 *)(r10 -8) = r10; r1 = ring; r2 = r10; r2 += -8; r3 = 8; r4 = 0; call ringbuf_output; r0 = 0; exit`},
	{ReasonPointerPart, 2, "there is a pointer among the 8 bytes", `*(u64 *)(r10 -8) = r10; r2 = 1; lock add *(u64 *)(r10 -8), r2; r0 = 0; exit`},
	{ReasonPointerPart, 7, "there is a pointer among the 16 bytes", number + `r6 &= 8; *(u64 *)(r10 -8) = r10; *(u64 *)(r10 -16) = 0; r2 = r10; r2 += -16; r2 += r6; r0 = *(u64 *)(r2 +0); exit`},
	{ReasonPointerStored, 6, "r10 (a pointer to the stack) is stored where others", cellR0 + `*(u64 *)(r0 +0) = r10` + inCell},
	{ReasonPointerStored, 6, "r6 (the context) is stored where others", recordR0 + `*(u64 *)(r0 +0) = r6; r1 = r0; r2 = 0; call ringbuf_submit` + inCell},
	{ReasonPointerStored, 6, "r0 (a pointer to a value of a map) is stored where others", cellR0 + `*(u64 *)(r0 +8) = r0` + inCell},
	{ReasonPointerStored, 0, "r1 (the context) is stored at r10-12", `*(u64 *)(r10 -12) = r1; r0 = 0; exit`},
	{ReasonPointerStored, 5, "not a multiple of 8 on every path", number + `r6 &= 8; r2 = r10; r2 += -16; r2 += r6; *(u64 *)(r2 +0) = r1; r0 = 0; exit`},
	{ReasonPointerStored, 4, "is stored in the stack of a caller", `r1 = r10; r1 += -8; call @f; exit; f: *(u64 *)(r1 +0) = r10; r0 = 0; exit`},
	{ReasonPointerArithmetic, 0, "r1 (the context) is used as a number", `r1 *= 3; r0 = 0; exit`},
	{ReasonPointerArithmetic, 1, "r2 (a pointer to the stack) is used as a number", `r2 = r10; r2 &= -8; r0 = 0; exit`},
	{ReasonPointerArithmetic, 1, "r2 (a pointer to the stack) is used as a number", `r2 = r10; r2 <<= 1; r0 = 0; exit`},
	{ReasonPointerArithmetic, 1, "r2 (a pointer to the stack) is used as a number", `r2 = r10; r2 = -r2; r0 = 0; exit`},
	{ReasonPointerPart, 1, "a part of r2 (a pointer to the stack) is taken", `r2 = r10; r2 = be64 r2; r0 = 0; exit`},
	{ReasonPointerArithmetic, 1, "r2 (a pointer to the stack) is used as a number", `r2 = r10; r2 %= 7; r0 = 0; exit`},
	{ReasonPointerArithmetic, 1, "r10 (a pointer to the stack) is subtracted from a number", `r2 = 5; r2 -= r10; r0 = 0; exit`},
	{ReasonPointerArithmetic, 1, "are combined", `r2 = r10; r2 += r1; r0 = 0; exit`},
	{ReasonPointerArithmetic, 7, "not known to point into the same object", cellR0 + `r1 = r10; r0 -= r1` + inCell},
	{ReasonPointerArithmetic, 12, "not known to point into the same object", cellR0 + `r7 = r0; r1 = map keyed; r2 = r10; r2 += -8; call map_cell; if r0 == 0 goto out; r0 -= r7` + inCell},
	{ReasonReference, 1, "r1 (a map) is used as a number", `r1 = map keyed; r1 += 8; r0 = 0; exit`},
	{ReasonReference, 1, "r1 (the ring) is used as a number", `r1 = ring; r1 ^= 1; r0 = 0; exit`},
	{ReasonReference, 1, "r1 (a function) is used as a number", `r1 = func f; r1 += 8; r0 = 0; exit; f: r0 = 0; exit`},
	{ReasonPointerComparison, 0, "r1 (the context) is compared with r10", `if r1 > r10 goto out; out: r0 = 0; exit`},
	{ReasonPointerComparison, 0, "r1 (the context) is compared with a number", `if r1 == 5 goto out; out: r0 = 0; exit`},
	{ReasonPointerComparison, 1, "r10 (a pointer to the stack) is compared with a number", number + `if r10 == r6 goto out; out: r0 = 0; exit`},
	{ReasonPointerComparison, 0, "compared with 0 in a way that says little", `if w1 == 0 goto out; out: r0 = 0; exit`},
	{ReasonPointerComparison, 5, "compared with 0 in a way that says little", lookupR0 + `if r0 > 0 goto out; out: r0 = 0; exit`},
	{ReasonPointerComparison, 1, "r2 (a pointer to the stack) is compared in a way", `r2 = r10; if r2 s> r10 goto out; out: r0 = 0; exit`},
	{ReasonPointerComparison, 1, "r2 (a pointer to the stack) is compared in a way", `r2 = r10; if r2 & r10 goto out; out: r0 = 0; exit`},
	{ReasonPointerComparison, 1, "r2 (a pointer to the stack) is compared with r10", `r2 = r10; if w2 > w10 goto out; out: r0 = 0; exit`},
	{ReasonPointerComparison, 11, "is compared with r7", lookupR0 + `r7 = r0; r1 = map keyed; r2 = r10; r2 += -8; call map_cell; r8 = r0; if r8 == r7 goto out` + inCell},
	{ReasonPointerComparison, 1, "r2 (a map) is compared with r2", `r2 = map keyed; if r2 == r2 goto out; out: r0 = 0; exit`},
	{ReasonNotNumber, 1, "r1 is the context, not a number", `*(u64 *)(r10 -8) = 0; lock add *(u64 *)(r10 -8), r1; r0 = 0; exit`},
	{ReasonNotNumber, 3, "r0 is a pointer to the stack, not a number", `*(u64 *)(r10 -8) = 0; r0 = r10; r2 = 1; lock cmpxchg *(u64 *)(r10 -8), r2; r0 = 0; exit`},
	{ReasonNotNumber, 8, "r1 is a map, not a number", cellR0 + `r1 = map keyed; r2 = 1; lock xchg *(u64 *)(r0 +0), r1` + inCell},

	// What is no longer known, or never was: where an index comes from.
	{ReasonOutside, -1, "1 byte at -5 to 92", number + `*(u64 *)(r10 -8) = 0; r3 = 3; if r6 == 0 goto a; r3 = 100; a: r2 = r10; r2 += -8; r2 += r3; r0 = *(u8 *)(r2 +0); exit`},
	{ReasonUnbounded, -1, "r2 may point anywhere", number + `r8 = *(u64 *)(r1 +104); *(u64 *)(r10 -8) = 0; r7 = r6; r9 = *(u64 *)(r1 +96); if r9 == 0 goto a; r7 = r8; a: if r6 > 7 goto out; r2 = r10; r2 += -8; r2 += r7; r0 = *(u8 *)(r2 +0); exit; out: r0 = 0; exit`},
	{ReasonUnbounded, -1, "", number + `*(u64 *)(r10 -8) = 3; *(u8 *)(r10 -8) = r6; r3 = *(u64 *)(r10 -8); r2 = r10; r2 += -8; r2 += r3; r0 = *(u8 *)(r2 +0); exit`},
	{ReasonUnbounded, -1, "", number + `*(u64 *)(r10 -16) = 3; *(u8 *)(r10 -11) = r6; *(u64 *)(r10 -8) = 0; r3 = *(u64 *)(r10 -16); r2 = r10; r2 += -8; r2 += r3; r0 = *(u8 *)(r2 +0); exit`},
	{ReasonUnbounded, -1, "", number + `*(u64 *)(r10 -16) = 3; *(u32 *)(r10 -14) = r6; *(u64 *)(r10 -8) = 0; r3 = *(u64 *)(r10 -16); r2 = r10; r2 += -8; r2 += r3; r0 = *(u8 *)(r2 +0); exit`},
	{ReasonOutside, -1, "", number + `*(u64 *)(r10 -16) = 3; r7 = r6; r7 &= 7; r4 = r10; r4 += -16; r4 += r7; *(u8 *)(r4 +0) = r6; *(u64 *)(r10 -8) = 0; r3 = *(u8 *)(r10 -16); r2 = r10; r2 += -8; r2 += r3; r0 = *(u8 *)(r2 +0); exit`},
	{ReasonUnbounded, -1, "", number + `*(u64 *)(r10 -16) = 3; lock add *(u64 *)(r10 -16), r6; *(u64 *)(r10 -8) = 0; r3 = *(u64 *)(r10 -16); r2 = r10; r2 += -8; r2 += r3; r0 = *(u8 *)(r2 +0); exit`},
	{ReasonUnbounded, -1, "", number + `*(u32 *)(r10 -16) = r6; *(u64 *)(r10 -8) = 0; r7 = *(u32 *)(r10 -16); if r7 > 7 goto out; r2 = r10; r2 += -8; r2 += r6; r0 = *(u8 *)(r2 +0); exit; out: r0 = 0; exit`},
	{ReasonOutside, -1, "", number + `*(u64 *)(r10 -8) = 0; r7 = r6; r7 += 8; if r7 > 15 goto out; r6 &= 255; r2 = r10; r2 += -8; r2 += r6; r0 = *(u8 *)(r2 +0); exit; out: r0 = 0; exit`},
	{ReasonUnbounded, -1, "", number + `*(u64 *)(r10 -8) = 0; r7 = r6; r6 += 1; r6 *= 3; if r7 > 7 goto out; r2 = r10; r2 += -8; r2 += r6; r0 = *(u8 *)(r2 +0); exit; out: r0 = 0; exit`},
	{ReasonUnbounded, -1, "", number + `*(u64 *)(r10 -8) = 0; if w6 > 7 goto out; r2 = r10; r2 += -8; r2 += r6; r0 = *(u8 *)(r2 +0); exit; out: r0 = 0; exit`},
	{ReasonOutside, -1, "1 byte at -8 to 0 of", number + `*(u64 *)(r10 -8) = 0; if r6 > 8 goto out; r2 = r10; r2 += -8; r2 += r6; r0 = *(u8 *)(r2 +0); exit; out: r0 = 0; exit`},
	{ReasonUnbounded, -1, "", number + `*(u64 *)(r10 -8) = 0; if r6 < 8 goto out; r2 = r10; r2 += -8; r2 += r6; r0 = *(u8 *)(r2 +0); exit; out: r0 = 0; exit`},
	{ReasonUnbounded, -1, "", number + `*(u64 *)(r10 -8) = 0; if r6 == 8 goto out; r2 = r10; r2 += -8; r2 += r6; r0 = *(u8 *)(r2 +0); exit; out: r0 = 0; exit`},
	{ReasonUnbounded, -1, "", number + `*(u64 *)(r10 -8) = 0; if r6 & 7 goto out; r2 = r10; r2 += -8; r2 += r6; r0 = *(u8 *)(r2 +0); exit; out: r0 = 0; exit`},
	{ReasonOutside, -1, "", number + `*(u64 *)(r10 -8) = 0; r6 |= 7; r6 &= 15; r2 = r10; r2 += -8; r2 += r6; r0 = *(u8 *)(r2 +0); exit`},
	{ReasonUninitialisedStack, -1, "", number + `*(u64 *)(r10 -8) = 0; r6 &= 7; r6 = -r6; r2 = r10; r2 += -8; r2 += r6; r0 = *(u8 *)(r2 +0); exit`},
	{ReasonOutside, -1, "", number + `*(u64 *)(r10 -8) = 0; r6 &= 3; r6 <<= r6; r2 = r10; r2 += -8; r2 += r6; r0 = *(u8 *)(r2 +0); exit`},
	{ReasonUnbounded, -1, "", number + `*(u64 *)(r10 -8) = 0; r6 &= 7; r6 ^= -1; r6 >>= 1; r2 = r10; r2 += -8; r2 += r6; r0 = *(u8 *)(r2 +0); exit`},
	{ReasonOutside, -1, "", number + `*(u64 *)(r10 -8) = 0; w6 s>>= 28; r2 = r10; r2 += -8; r2 += r6; r0 = *(u8 *)(r2 +0); exit`},
	{ReasonOutside, -1, "", number + `*(u64 *)(r10 -8) = 0; r6 = (s8) r6; r2 = r10; r2 += -8; r2 += r6; r0 = *(u8 *)(r2 +0); exit`},
	{ReasonOutside, -1, "", number + `*(u64 *)(r10 -8) = 0; r6 %= 9; r2 = r10; r2 += -8; r2 += r6; r0 = *(u8 *)(r2 +0); exit`},
	{ReasonUnbounded, -1, "", number + `*(u64 *)(r10 -8) = 0; r3 = 4; r3 %= r6; r6 = 8; r6 /= r3; r6 = be64 r6; r2 = r10; r2 += -8; r2 += r6; r0 = *(u8 *)(r2 +0); exit`},
	{ReasonOutside, -1, "", number + `*(u64 *)(r10 -8) = 0; r7 = 40; r7 %= r6; r2 = r10; r2 += -8; r2 += r7; r0 = *(u8 *)(r2 +0); exit`},
	{ReasonOutside, -1, "", `*(u64 *)(r10 -8) = 0; r6 = *(s8 *)(r1 +112); r2 = r10; r2 += -8; r2 += r6; r0 = *(u8 *)(r2 +0); exit`},
	{ReasonUnbounded, -1, "", cellR0 + `*(u64 *)(r0 +0) = 3; r3 = *(u64 *)(r0 +0); r2 = r10; r2 += -8; r2 += r3; r0 = *(u8 *)(r2 +0); exit` + inCell},
	{ReasonUnbounded, -1, "", cellR0 + `r3 = *(u64 *)(r0 +0); if r3 > 7 goto out; r3 = *(u64 *)(r0 +0); r2 = r10; r2 += -8; r2 += r3; r0 = *(u8 *)(r2 +0); exit` + inCell},
	{ReasonUnbounded, -1, "", recordR0 + `*(u64 *)(r0 +0) = 3; r3 = *(u64 *)(r0 +0); *(u64 *)(r10 -8) = 0; r2 = r10; r2 += -8; r2 += r3; r0 = *(u8 *)(r2 +0); exit` + inCell},
	{ReasonUnbounded, -1, "", number + `*(u64 *)(r10 -8) = 0; *(u64 *)(r10 -16) = 3; r1 = r10; r1 += -16; r2 = r6; call @f; r3 = *(u64 *)(r10 -16); r2 = r10; r2 += -8; r2 += r3; r0 = *(u8 *)(r2 +0); exit; f: *(u64 *)(r1 +0) = r2; r0 = 0; exit`},
	{ReasonUnbounded, -1, "", number + `*(u64 *)(r10 -8) = 0; *(u64 *)(r10 -16) = 3; r1 = r10; r1 += -16; r2 = 8; r3 = r6; call probe_read_user; r3 = *(u64 *)(r10 -16); r2 = r10; r2 += -8; r2 += r3; r0 = *(u8 *)(r2 +0); exit`},
	{ReasonUnbounded, -1, "", `*(u64 *)(r10 -8) = 0; *(u64 *)(r10 -16) = 3; r1 = 10; r2 = func f; r3 = r10; r3 += -16; r4 = 0; call loop; r3 = *(u64 *)(r10 -16); r2 = r10; r2 += -8; r2 += r3; r0 = *(u8 *)(r2 +0); exit; f: r6 = r2; call ktime_get_ns; *(u64 *)(r6 +0) = r0; r0 = 0; exit`},
	{ReasonOutside, -1, "", `*(u64 *)(r10 -8) = 0; r1 = 9; r2 = func f; r3 = r10; r3 += -8; r4 = 0; call loop; r0 = 0; exit; f: r2 += r1; *(u8 *)(r2 +0) = 1; r0 = 0; exit`},
	{ReasonOutside, -1, "", `*(u64 *)(r10 -8) = 0; *(u64 *)(r10 -16) = 0; r1 = 10; r2 = func f; r3 = r10; r3 += -16; r4 = 0; call loop; r3 = *(u64 *)(r10 -16); r3 &= 255; r2 = r10; r2 += -8; r2 += r3; r0 = *(u8 *)(r2 +0); exit; f: r3 = *(u64 *)(r2 +0); r3 += 1; *(u64 *)(r2 +0) = r3; r0 = 0; exit`},
	{ReasonMaybeNull, -1, "", lookupR0 + `r7 = r0; r1 = map keyed; r2 = r10; r2 += -8; call map_cell; if r0 == 0 goto out; r1 = *(u64 *)(r7 +8)` + inCell},
	{ReasonMaybeNull, -1, "", lookupR0 + `*(u64 *)(r10 -16) = r0; r6 = *(u64 *)(r10 -16); r1 = *(u64 *)(r6 +0); r0 = 0; exit`},
	{ReasonOutside, -1, "", `r2 = r10; r2 += -64; l: *(u64 *)(r2 +0) = 0; r2 += 8; r3 = r10; r3 += 8; if r2 != r3 goto l; r0 = 0; exit`},
	{ReasonUnbounded, -1, "", number + `*(u64 *)(r10 -8) = 0; r3 = 0; l: r3 += 1; if r3 != r6 goto l; r2 = r10; r2 += -8; r2 += r3; r0 = *(u8 *)(r2 +0); exit`},
	{ReasonUnbounded, -1, "", number + `*(u64 *)(r10 -8) = 0; *(u64 *)(r10 -16) = 3; r6 &= 8; r1 = r10; r1 += -16; r2 = r6; r3 = 0; call probe_read_user; r3 = *(u64 *)(r10 -16); r2 = r10; r2 += -8; r2 += r3; r0 = *(u8 *)(r2 +0); exit`},

	// Records.
	{ReasonReference, 7, "the record of instruction 4 was neither", recordR0 + `r0 = 0; exit; out: r0 = 0; exit`},
	{ReasonReference, 8, "the run ends, but the record", recordR0 + `*(u64 *)(r0 +0) = 1` + inCell},
	{ReasonReference, 12, "the record of instruction 4 was neither", recordR0 + `r7 = *(u64 *)(r6 +112); if r7 == 0 goto out; r1 = r0; r2 = 0; call ringbuf_submit` + inCell},
	{ReasonReference, 6, "the run ends, but the record", recordR0 + `call exit` + inCell},
	{ReasonMapType, 9, "tail_call does not work on map perf", recordR0 + `r1 = r6; r2 = map perf; r3 = 0; call tail_call; r0 = 0; exit` + inCell},
	{ReasonReference, 4, "still held", `r6 = 0; l: r1 = map events; r2 = 16; r3 = 0; call ringbuf_reserve; r6 += 1; if r6 != 20 goto l; r0 = 0; exit`},
	{ReasonReference, 12, "the function returns, but the record", `call @f; if r0 == 0 goto out; r1 = r0; r2 = 0; call ringbuf_submit; out: r0 = 0; exit; f: r1 = map events; r2 = 16; r3 = 0; call ringbuf_reserve; if r0 == 0 goto none; exit; none: r0 = 0; exit`},
	{ReasonReference, 19, "gives back one of its caller", recordR0 + `*(u64 *)(r10 -8) = r0; r1 = 3; r2 = func f; r3 = r10; r3 += -8; r4 = 0; call loop; out: r0 = 0; exit; f: r1 = *(u64 *)(r2 +0); r2 = 0; call ringbuf_submit; r0 = 0; exit`},
	{ReasonReference, 13, "the function returns, but the record of instruction 10", `r1 = 3; r2 = func f; r3 = 0; r4 = 0; call loop; r0 = 0; exit; f: r1 = map events; r2 = 16; r3 = 0; call ringbuf_reserve; if r0 == 0 goto out; r0 = 0; exit; out: r0 = 0; exit`},
	{ReasonReleased, 10, "r7 pointed into a record", recordR0 + `r7 = r0; r1 = r0; r2 = 0; call ringbuf_submit; *(u64 *)(r7 +0) = 1` + inCell},
	{ReasonReleased, 10, "r7 pointed into a record", recordR0 + `r7 = r0; r1 = r0; r2 = 0; call ringbuf_discard; r1 = r7; r2 = 0; call ringbuf_submit` + inCell},
	{ReasonReleased, 11, "r1 pointed into a record", recordR0 + `*(u64 *)(r10 -16) = r0; r1 = r0; r2 = 0; call ringbuf_submit; r1 = *(u64 *)(r10 -16); r1 = *(u64 *)(r1 +0)` + inCell},
	{ReasonArgument, 9, "ringbuf_submit takes a record as ringbuf_reserve returned it", recordR0 + `r1 = r0; r1 += 8; r2 = 0; call ringbuf_submit` + inCell},
	{ReasonArgument, 3, "ringbuf_discard takes a record", `r1 = r10; r1 += -8; r2 = 0; call ringbuf_discard; r0 = 0; exit`},

	// Helpers.
	{ReasonHelper, 0, "helper 9999", `call 9999; r0 = 0; exit`},
	{ReasonHelper, 0, "helper 26", `call 26; r0 = 0; exit`},
	{ReasonHelper, 1, "helper 9999", `r6 = 9999; callx r6; r0 = 0; exit`},
	{ReasonCallTarget, 1, "not the same 31-bit number", number + `callx r6; r0 = 0; exit`},
	{ReasonCallTarget, 0, "in r1", `callx r1; r0 = 0; exit`},
	{ReasonCallTarget, 1, "in r6", `r6 = -1; callx r6; r0 = 0; exit`},
	{ReasonCallTarget, 5, "loop is called through a register", `r1 = 3; r2 = func f; r3 = 0; r4 = 0; r6 = 181; callx r6; r0 = 0; exit; f: r0 = 0; exit`},
	{ReasonCallTarget, 1, "not the same", `r6 = func f; callx r6; exit; f: r0 = 0; exit`},
	{ReasonArgument, 1, "map_cell takes a map in r1, which is the context", `r2 = r10; call map_cell; r0 = 0; exit`},
	{ReasonArgument, 2, "map_cell takes a pointer to a key of 8 bytes in r2, which is a number", `r1 = map keyed; r2 = 0; call map_cell; r0 = 0; exit`},
	{ReasonArgument, 3, "map_cell takes a pointer to a key of 4 bytes in r2, which is the context", `r2 = r1; r1 = map one; r3 = 0; call map_cell; r0 = 0; exit`},
	{ReasonArgument, 4, "ringbuf_output takes a map in r1", `r2 = r10; r3 = 8; r4 = 0; r1 = 0; call ringbuf_output; r0 = 0; exit`},
	{ReasonArgument, 4, "ringbuf_output takes a pointer to memory of the program in r2, which is a number", `r1 = ring; r2 = 0; r3 = 8; r4 = 0; call ringbuf_output; r0 = 0; exit`},
	{ReasonArgument, 5, "ringbuf_output takes a size in r3, which is a pointer to the stack", zeroWord + `r1 = ring; r2 = r10; r3 = r10; r4 = 0; call ringbuf_output; r0 = 0; exit`},
	{ReasonArgument, 6, "ringbuf_output takes a number in r4, which is a map", zeroWord + `r1 = ring; r2 = r10; r2 += -8; r3 = 8; r4 = map keyed; call ringbuf_output; r0 = 0; exit`},
	{ReasonArgument, 3, "probe_read_user takes a pointer to memory of the program in r1, which is the context", `r2 = 8; r3 = 0; r4 = 0; call probe_read_user; r0 = 0; exit`},
	{ReasonArgument, 4, "probe_read_user takes a number in r3, which is the context", `r3 = r1; r1 = r10; r1 += -8; r2 = 8; call probe_read_user; r0 = 0; exit`},
	{ReasonArgument, 4, "ringbuf_reserve takes a number in r3", `r6 = r1; r1 = map events; r2 = 16; r3 = r6; call ringbuf_reserve; r0 = 0; exit`},
	{ReasonArgument, 1, "get_func_ip takes the context as the program got it in r1", `r1 += 8; call get_func_ip; r0 = 0; exit`},
	{ReasonArgument, 1, "get_attach_cookie takes the context", `r1 = r10; call get_attach_cookie; r0 = 0; exit`},
	{ReasonArgument, 4, "get_stack takes the context", `r1 = 0; r2 = r10; r3 = 8; r4 = 0; call get_stack; r0 = 0; exit`},
	{ReasonArgument, 3, "get_stackid takes a map in r2", `r2 = 0; r3 = 0; r4 = 0; call get_stackid; r0 = 0; exit`},
	{ReasonArgument, 4, "loop takes a function of the program in r2", `r1 = 3; r2 = 0; r3 = 0; r4 = 0; call loop; r0 = 0; exit`},
	{ReasonArgument, 4, "loop takes a pointer to the stack, or 0, in r3, which is the context", `r3 = r1; r1 = 3; r2 = func f; r4 = 0; call loop; r0 = 0; exit; f: r0 = 0; exit`},
	{ReasonArgument, 4, "loop takes a pointer to the stack, or 0, in r3, which is a number", `r1 = 3; r2 = func f; r3 = 8; r4 = 0; call loop; r0 = 0; exit; f: r0 = 0; exit`},
	{ReasonArgument, 4, "loop takes a number of rounds in r1, which is a pointer to the stack", `r1 = r10; r2 = func f; r3 = 0; r4 = 0; call loop; r0 = 0; exit; f: r0 = 0; exit`},
	{ReasonArgument, 4, "loop takes flags that are 0 in r4", `r1 = 3; r2 = func f; r3 = 0; r4 = 1; call loop; r0 = 0; exit; f: r0 = 0; exit`},
	{ReasonArgument, 5, "for_each_map_elem takes flags that are 0 in r4", number + `r1 = map hash; r2 = func f; r3 = 0; r4 = r6; call for_each_map_elem; r0 = 0; exit; f: r0 = 0; exit`},
	{ReasonArgument, 4, "for_each_map_elem takes a function", `r1 = map hash; r2 = 0; r3 = 0; r4 = 0; call for_each_map_elem; r0 = 0; exit`},
	{ReasonArgument, 5, "snprintf takes a constant string, with a zero byte at its end, in r3", `r1 = 0; r2 = 0; r3 = r10; r4 = 0; r5 = 0; call snprintf; r0 = 0; exit`},
	{ReasonArgument, 3, "tail_call takes a map in r2", `r2 = 0; r3 = 0; r4 = 0; call tail_call; r0 = 0; exit`},
	{ReasonMapType, 4, "map_cell does not work on map hash (hash)", zeroWord + `r1 = map hash; r2 = r10; r2 += -8; call map_cell; r0 = 0; exit`},
	{ReasonMapType, 3, "map_lookup_elem does not work on map events (ringbuf)", `r1 = map events; r2 = r10; r2 += -8; call map_lookup_elem; r0 = 0; exit`},
	{ReasonMapType, 4, "map_delete_elem does not work on map array (array)", zeroWord + `r1 = map array; r2 = r10; r2 += -8; call map_delete_elem; r0 = 0; exit`},
	{ReasonMapType, 5, "map_update_elem does not work on map stacks", zeroWord + `r1 = map stacks; r2 = r10; r3 = r10; r4 = 0; call map_update_elem; r0 = 0; exit`},
	{ReasonMapType, 6, "ringbuf_output does not work on map keyed", zeroWord + `r1 = map keyed; r2 = r10; r2 += -8; r3 = 8; r4 = 0; call ringbuf_output; r0 = 0; exit`},
	{ReasonMapType, 3, "ringbuf_reserve does not work on map perf", `r1 = map perf; r2 = 16; r3 = 0; call ringbuf_reserve; r0 = 0; exit`},
	{ReasonMapType, 4, "perf_event_output does not work on map events", `r2 = map events; r3 = 0; r4 = r10; r5 = 8; call perf_event_output; r0 = 0; exit`},
	{ReasonMapType, 2, "get_stackid does not work on map hash", `r2 = map hash; r3 = 0; call get_stackid; r0 = 0; exit`},
	{ReasonMapType, 4, "for_each_map_elem does not work on map events", `r1 = map events; r2 = func f; r3 = 0; r4 = 0; call for_each_map_elem; r0 = 0; exit; f: r0 = 0; exit`},
	{ReasonMapType, 4, "for_each_map_elem does not work on map stacks", `r1 = map stacks; r2 = func f; r3 = 0; r4 = 0; call for_each_map_elem; r0 = 0; exit; f: r0 = 0; exit`},
	{ReasonMapType, 0, "the values of map hash (hash) have no fixed place", `r1 = value hash +0; r0 = 0; exit`},
	{ReasonMapType, 0, "the values of map keyed (percpu_hash) have no fixed place", `r1 = value keyed +0; r0 = 0; exit`},
	{ReasonMapType, 2, "ringbuf_query does not work on map perf", `r1 = map perf; r2 = 0; call ringbuf_query; r0 = 0; exit`},
	{ReasonMapType, 2, "ringbuf_query does not work on map hash", `r1 = map hash; r2 = 0; call ringbuf_query; r0 = 0; exit`},
	{ReasonArgument, 2, "ringbuf_query takes a number in r2, which is a map", `r1 = map events; r2 = r1; call ringbuf_query; r0 = 0; exit`},
	{ReasonMaybeNull, 6, "may be 0", zeroWord + `r1 = map keyed; r2 = r10; r2 += -8; r3 = 0; call map_lookup_percpu_elem; r0 = *(u64 *)(r0 +0); exit`},
	{ReasonMapType, 4, "map_lookup_percpu_elem does not work on map lru", zeroWord + `r1 = map lru; r2 = r10; r3 = 0; call map_lookup_percpu_elem; r0 = 0; exit`},
	{ReasonSize, 6, "the size in r2 has no limit", number + `if r6 s< 0 goto out; r3 = 0; r1 = r10; r1 += -64; r2 = r6; call probe_read_user; out: r0 = 0; exit`},
	{ReasonSize, 5, "the size in r2 may be negative", number + `r3 = 0; r1 = r10; r1 += -64; r2 = r6; call probe_read_user; r0 = 0; exit`},
	{ReasonSize, 6, "the size in r2 may be negative", number + `if r6 s> 64 goto out; r3 = 0; r1 = r10; r1 += -64; r2 = r6; call probe_read_user; out: r0 = 0; exit`},
	{ReasonSize, 4, "the size in r2 may be negative", `r3 = 0; r1 = r10; r1 += -64; r2 = -1; call probe_read_user; r0 = 0; exit`},
	{ReasonSize, 3, "the size in r2 may be 0", `r1 = r10; r1 += -16; r2 = 0; call get_current_comm; r0 = 0; exit`},
	{ReasonSize, 5, "the size in r2 may be 0", number + `r6 &= 15; r1 = r10; r1 += -16; r2 = r6; call get_current_comm; r0 = 0; exit`},
	{ReasonSize, 3, "a constant of at least 1", `r1 = map events; r2 = 0; r3 = 0; call ringbuf_reserve; r0 = 0; exit`},
	{ReasonSize, 3, "a record of 1000000 bytes", `r1 = map events; r2 = 1000000; r3 = 0; call ringbuf_reserve; r0 = 0; exit`},
	{ReasonSize, 4, "a constant of at least 1", number + `r1 = map events; r2 = r6; r3 = 0; call ringbuf_reserve; r0 = 0; exit`},
	{ReasonSize, 3, "a constant of at least 1", `r1 = map events; r2 = -16; r3 = 0; call ringbuf_reserve; r0 = 0; exit`},
	{ReasonSize, 6, "r3 is 0, but the size in r4 may be more", zeroWord + `r1 = r10; r1 += -8; r2 = 8; r3 = 0; r4 = 8; call trace_vprintk; r0 = 0; exit`},
	{ReasonSize, 11, "the size in r3 may be negative", `r6 = *(u64 *)(r1 +112); r3 = r6; r1 = r10; r1 += -64; r2 = 64; call probe_read_user_str; r3 = r0; r2 = r10; r2 += -64; r1 = map events; r4 = 0; call ringbuf_output; r0 = 0; exit`},

	// Functions.
	{ReasonReturn, 4, "r0 (a pointer to the stack) is returned", `call @f; r0 = 0; exit; f: r0 = r10; exit`},
	{ReasonReturn, 8, "must return 0 or 1, not 2", `r1 = 3; r2 = func f; r3 = 0; r4 = 0; call loop; r0 = 0; exit; f: r0 = 2; exit`},
	{ReasonReturn, 8, "must return 0 or 1", `r1 = 3; r2 = func f; r3 = 0; r4 = 0; call loop; r0 = 0; exit; f: r0 = r1; exit`},
	{ReasonReturn, 8, "must return 0 or 1, not -1", `r1 = map hash; r2 = func f; r3 = 0; r4 = 0; call for_each_map_elem; r0 = 0; exit; f: r0 = -1; exit`},
	{ReasonNotInMain, 2, "exit is called in a function", `call @f; exit; f: call exit`},
	{ReasonStackSize, 0, "the functions need 520 bytes", `*(u64 *)(r10 -504) = 0; call @f; exit; f: *(u64 *)(r10 -16) = 0; r0 = 0; exit`},
	{ReasonStackSize, 0, "the functions need 576 bytes", `*(u64 *)(r10 -256) = 0; call @f; exit; f: *(u64 *)(r10 -256) = 0; call @g; exit; g: *(u64 *)(r10 -64) = 0; r0 = 0; exit`},
	{ReasonStackSize, 0, "the functions need 528 bytes", `*(u64 *)(r10 -264) = 0; r1 = 3; r2 = func f; r3 = 0; r4 = 0; call loop; r0 = 0; exit; f: *(u64 *)(r10 -264) = 0; r0 = 0; exit`},
}

// structural are refusals of programs as such, which no way through them leads to.
var structural = map[Reason]bool{ReasonEncoding: true, ReasonUnsupported: true, ReasonJump: true, ReasonFunction: true,
	ReasonMap: true, ReasonFramePointer: true, ReasonStackSize: true}

// TestVerifyRefuses refuses programs, each for a reason of its own, with all that
// helps to find it: the instruction, its line, what is known there, what to change.
func TestVerifyRefuses(t *testing.T) {
	seen := map[string]bool{}
	words := map[Reason]int{}
	for _, row := range refusals {
		p := textProgram(t, "refused", row.prog)
		for i := range p.Insns {
			p.Insns[i] = p.Insns[i].WithSource(asm.Comment(fmt.Sprintf("refused.c:%d: line", i+1)))
		}
		_, err := verify(p, options{missing: true})
		var e *InsnError
		switch {
		case !errors.As(err, &e):
			t.Errorf("%s: accepted, or another error: %v\n%v", row.word, err, p)
			continue
		case e.Word != row.word || row.at >= 0 && e.Index != row.at || !strings.Contains(e.Reason, row.text):
			t.Errorf("want %s at %d (%s), got %s at %d\n%v\n%v", row.word, row.at, row.text, e.Word, e.Index, err, p)
		case e.Hint == "" || e.Insn == "":
			t.Errorf("%s: no hint, or no instruction: %+v", row.word, e)
		case e.Source != fmt.Sprintf("refused.c:%d: line", e.Index+1):
			t.Errorf("%s at %d: from line %q", row.word, e.Index, e.Source)
		case e.State == "" && !structural[e.Word]:
			t.Errorf("%s at %d: no state: %v", row.word, e.Index, err)
		}
		seen[fmt.Sprint(e.Word, e.Insn, e.Reason)] = true
		words[e.Word]++
	}
	t.Logf("%d programs are refused, with %d different errors: %v", len(refusals), len(seen), words)
	if len(seen) < 200 {
		t.Errorf("%d different refusals", len(seen))
	}
}

// A refusal says where it is in the source, and how the program got there.
func TestRefusalTellsWhere(t *testing.T) {
	p := textProgram(t, "traced", `r6 = 1; call @f; r0 = 0; exit; f: r7 = 5; call @g; exit; g: r1 = 3; *(u32 *)(r10 -4) = 0; r0 = *(u64 *)(r10 -8); exit`)
	p.Insns[4] = p.Insns[4].WithSource(asm.Comment("prog.bpf.c:12: static int f(void)"))
	p.Insns[8] = p.Insns[8].WithSource(asm.Comment("prog.bpf.c:20: return *key;"))
	_, err := Verify(p)
	var e *InsnError
	if !errors.As(err, &e) {
		t.Fatal(err)
	}
	want := InsnError{
		Program: "traced", Index: 9, Insn: "r0 = *(u64 *)(r10 -8)", Word: ReasonUninitialisedStack,
		Reason: "the byte at r10-8 may not have been written", Source: "prog.bpf.c:20: return *key;",
		State: "frame2: R1=3 R10=fp0[2] fp-8=mmmm????", Callers: []int{5, 1},
		Hint: "write all bytes first, also the gaps between the fields of a structure",
	}
	if diff := cmp.Diff(want, *e); diff != "" {
		t.Error(diff)
	}
	for _, part := range []string{"instruction 9", "source: prog.bpf.c:20", "called by instruction 5 1", "state: frame2", "hint: write"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("no %q in %v", part, err)
		}
	}
}

// A program with too many ways is given up by name: each of its functions calls
// the next one six times, so that the last is called in 6^7 ways.
func TestVerifyGivesUp(t *testing.T) {
	var b strings.Builder
	for f := range MaxFrames {
		fmt.Fprintf(&b, "f%d: r6 = *(u64 *)(r1 +112); r7 = r1; ", f)
		for range 6 {
			if f < MaxFrames-1 {
				fmt.Fprintf(&b, "r1 = r7; call @f%d; r6 += r0; ", f+1)
			}
		}
		b.WriteString("r0 = r6; exit; ")
	}
	_, err := Verify(textProgram(t, "complex", b.String()))
	var e *InsnError
	if !errors.As(err, &e) || e.Word != ReasonTooComplex {
		t.Errorf("%v", err)
	}
}

// TestVerifyWorkIsBounded counts the instructions that are looked at in programs that
// are made to need many, and are refused.
func TestVerifyWorkIsBounded(t *testing.T) {
	const end = "r3 = r10; r3 += r8; *(u8 *)(r3 +0) = 1; r0 = 0; exit"
	nested := "r8 = 0; r6 = *(u64 *)(r1 +112); a: r2 = 0; b: r3 = 0; c: r3 += 1; r8 += r3; if r3 != r6 goto c; r2 += 1; if r2 != r6 goto b; if r8 != r6 goto a; " + end
	var forks strings.Builder
	forks.WriteString("r8 = 0; r6 = *(u64 *)(r1 +112); r9 = r6; ")
	for i := range 400 {
		fmt.Fprintf(&forks, "if r6 & %d goto f%d; r8 += %d; f%d: r6 >>= 1; r7 = r8; *(u64 *)(r10 -%d) = r8; ", 1<<(i%31), i, 1+i*7, i, 8+8*(i%60))
	}
	for name, text := range map[string]string{"nested loops": nested, "ways": forks.String() + end} {
		p := textProgram(t, name, text)
		looked, most := 0, 0
		_, err := verify(p, options{watch: func(int, *state) { looked++ }})
		var e *InsnError
		if !errors.As(err, &e) {
			t.Errorf("%s: %v", name, err)
		}
		for _, e := range efforts {
			most += e.steps*len(p.Insns) + e.more
		}
		if looked == 0 || looked > most {
			t.Errorf("%s: %d instructions looked at, with a budget of %d", name, looked, most)
		}
		t.Logf("%s: %d instructions looked at for %d: %s", name, looked, len(p.Insns), e.Word)
	}
}
