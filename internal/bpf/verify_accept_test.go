package bpf

import (
	"slices"
	"testing"

	"trapless/internal/abi"
)

// runMaps are maps that the engine has; allMaps has one of each kind besides
// that it has not yet.
var (
	runMaps = append(slices.Clone(testMaps),
		abi.MapSpec{Name: "array", Kind: abi.Array, KeySize: 4, ValueSize: 64, MaxEntries: 8},
		abi.MapSpec{Name: "hash", Kind: abi.Hash, KeySize: 8, ValueSize: 32, MaxEntries: 64},
		abi.MapSpec{Name: "odd", Kind: abi.Hash, KeySize: 3, ValueSize: 11, MaxEntries: 64},
		abi.MapSpec{Name: "events", Kind: abi.RingBuf, MaxEntries: 4096},
		abi.MapSpec{Name: "perf", Kind: abi.PerfEventArray, KeySize: 4, ValueSize: 4, MaxEntries: 4},
	)
	allMaps = append(slices.Clone(runMaps),
		abi.MapSpec{Name: "lru", Kind: abi.LRUHash, KeySize: 4, ValueSize: 8, MaxEntries: 64},
		abi.MapSpec{Name: "stacks", Kind: abi.StackTrace, KeySize: 4, ValueSize: 128, MaxEntries: 16},
	)
)

// textProgram assembles a program. It has the engine's maps alone if it does
// not refer to others, so that it can be run.
func textProgram(t testing.TB, name, text string) *Program {
	t.Helper()
	maps := runMaps
	insns, err := assemble(text, maps)
	if err != nil {
		maps = allMaps
		if insns, err = assemble(text, maps); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	return &Program{Name: name, Insns: insns, Maps: maps}
}

// acceptedTexts are programs that must be accepted, as clang makes them or as
// people write them.
var acceptedTexts = map[string]string{
	"nothing": `r0 = 0; exit`,
	"a count in a known cell": `*(u32 *)(r10 -4) = 0; r1 = map one; r2 = r10; r2 += -4; call map_cell
		r1 = 1; lock add *(u64 *)(r0 +0), r1; r0 = 0; exit`,
	"a count by key": `r3 = *(u64 *)(r1 +112); *(u64 *)(r10 -8) = r3; r1 = map keyed; r2 = r10; r2 += -8; call map_cell
		if r0 == 0 goto out; r1 = 1; lock add *(u64 *)(r0 +8), r1; out: r0 = 0; exit`,
	"a null test of a copy": `*(u64 *)(r10 -8) = 7; r1 = map keyed; r2 = r10; r2 += -8; call map_cell
		r6 = r0; if r0 == 0 goto out; r1 = *(u64 *)(r6 +8); out: r0 = 0; exit`,
	"a null test of a spilled copy": `*(u64 *)(r10 -8) = 7; r1 = map keyed; r2 = r10; r2 += -8; call map_cell
		*(u64 *)(r10 -16) = r0; if r0 == 0 goto out; r6 = *(u64 *)(r10 -16); r1 = *(u64 *)(r6 +8); out: r0 = 0; exit`,
	"a null test with the operands exchanged": `*(u64 *)(r10 -8) = 7; r1 = map keyed; r2 = r10; r2 += -8; call map_cell
		r1 = 0; if r1 == r0 goto out; r1 = *(u64 *)(r0 +8); out: r0 = 0; exit`,
	"parts of context fields":    `w0 = 0; r2 = *(u32 *)(r1 +112); r3 = *(u16 *)(r1 +106); r4 = *(u8 *)(r1 +103); r5 = *(s32 *)(r1 +96); r0 = r5; exit`,
	"a context that was spilled": `*(u64 *)(r10 -16) = r1; r2 = *(u64 *)(r10 -16); r0 = *(u64 *)(r2 +152); exit`,
	"an event":                   `*(u64 *)(r10 -8) = 7; r1 = ring; r2 = r10; r2 += -8; r3 = 8; r4 = 0; call ringbuf_output; r0 = 0; exit`,

	// Limits.
	"a masked index": `r3 = *(u64 *)(r1 +112); r3 &= 15; *(u64 *)(r10 -16) = 0; *(u64 *)(r10 -8) = 0
		r2 = r10; r2 += -16; r2 += r3; r0 = *(u8 *)(r2 +0); exit`,
	"a compared index": `r3 = *(u64 *)(r1 +112); if r3 > 15 goto out; *(u64 *)(r10 -16) = 0; *(u64 *)(r10 -8) = 0
		r2 = r10; r2 += -16; r2 += r3; r0 = *(u8 *)(r2 +0); exit; out: r0 = 0; exit`,
	"an index compared as a 32-bit number": `r3 = *(u64 *)(r1 +112); w3 = w3; if w3 > 15 goto out; *(u64 *)(r10 -16) = 0; *(u64 *)(r10 -8) = 0
		r2 = r10; r2 += -16; r2 += r3; r0 = *(u8 *)(r2 +0); exit; out: r0 = 0; exit`,
	"an index that is shifted as older compilers do": `r3 = *(u64 *)(r1 +112); r3 <<= 32; r3 >>= 32; if r3 > 15 goto out; *(u64 *)(r10 -16) = 0; *(u64 *)(r10 -8) = 0
		r2 = r10; r2 += -16; r2 += r3; r0 = *(u8 *)(r2 +0); exit; out: r0 = 0; exit`,
	"a signed index": `r3 = *(u64 *)(r1 +112); if r3 s< 0 goto out; if r3 s> 15 goto out; *(u64 *)(r10 -16) = 0; *(u64 *)(r10 -8) = 0
		r2 = r10; r2 += -16; r2 += r3; r0 = *(u8 *)(r2 +0); exit; out: r0 = 0; exit`,
	"an index whose copy is compared": `r3 = *(u64 *)(r1 +112); r4 = r3; if r4 > 15 goto out; *(u64 *)(r10 -16) = 0; *(u64 *)(r10 -8) = 0
		r2 = r10; r2 += -16; r2 += r3; r0 = *(u8 *)(r2 +0); exit; out: r0 = 0; exit`,
	"an index whose successor is compared": `r3 = *(u64 *)(r1 +112); r4 = r3; r4 += 1; if r4 > 16 goto out; if r4 == 0 goto out; *(u64 *)(r10 -16) = 0; *(u64 *)(r10 -8) = 0
		r2 = r10; r2 += -16; r2 += r3; r0 = *(u8 *)(r2 +0); exit; out: r0 = 0; exit`,
	"a limit that survives a spill": `r3 = *(u64 *)(r1 +112); if r3 > 15 goto out; *(u64 *)(r10 -24) = r3; *(u64 *)(r10 -16) = 0; *(u64 *)(r10 -8) = 0
		r3 = 9; r4 = *(u64 *)(r10 -24); r2 = r10; r2 += -16; r2 += r4; r0 = *(u8 *)(r2 +0); exit; out: r0 = 0; exit`,
	"a spilled number that is compared in a register": `r3 = *(u64 *)(r1 +112); *(u64 *)(r10 -24) = r3; if r3 > 15 goto out; *(u64 *)(r10 -16) = 0; *(u64 *)(r10 -8) = 0
		r3 = 9; r4 = *(u64 *)(r10 -24); r2 = r10; r2 += -16; r2 += r4; r0 = *(u8 *)(r2 +0); exit; out: r0 = 0; exit`,
	"if (len > 16) len = 16": `r3 = *(u64 *)(r1 +112); *(u64 *)(r10 -16) = 0; *(u64 *)(r10 -8) = 0; if r3 < 17 goto go; r3 = 16
		go: r1 = ring; r2 = r10; r2 += -16; r4 = 0; call ringbuf_output; r0 = 0; exit`,
	"an index times the size of an element": `r3 = *(u64 *)(r1 +112); *(u64 *)(r10 -24) = 0; *(u64 *)(r10 -16) = 0; *(u64 *)(r10 -8) = 0
		r3 %= 3; r3 *= 8; r2 = r10; r2 += -24; r2 += r3; r0 = *(u64 *)(r2 +0); exit`,
	"a number minus a pointer's offset": `r2 = r10; r2 += -16; r3 = r10; r3 -= r2; r2 += r3; r0 = 1; *(u64 *)(r2 -8) = r0; exit`,
	"pointers compared with the end": `*(u64 *)(r10 -16) = 0; *(u64 *)(r10 -8) = 0; r6 = *(u64 *)(r1 +112); r6 &= 31; r2 = r10; r2 += -16; r2 += r6; r3 = r10
		r0 = 0; if r2 >= r3 goto out; r0 = *(u8 *)(r2 +0); out: exit`,
	"a store at an unknown place":        `r3 = *(u64 *)(r1 +112); r3 &= 7; *(u64 *)(r10 -8) = 0; r2 = r10; r2 += -8; r2 += r3; r4 = 5; *(u8 *)(r2 +0) = r4; r0 = *(u64 *)(r10 -8); exit`,
	"unaligned accesses":                 `r0 = 77; *(u64 *)(r10 -13) = r0; *(u32 *)(r10 -5) = 1; r1 = *(u16 *)(r10 -9); r0 = *(u64 *)(r10 -13); exit`,
	"halves of a spilled number":         `r3 = *(u64 *)(r1 +112); *(u64 *)(r10 -8) = r3; r0 = *(u32 *)(r10 -4); r4 = *(u32 *)(r10 -8); r0 += r4; exit`,
	"a constant put together from parts": `*(u32 *)(r10 -8) = 3; *(u32 *)(r10 -4) = 0; r3 = *(u64 *)(r10 -8); r2 = r10; r2 += -8; r2 += r3; r0 = *(u8 *)(r2 +0); exit`,
	"a value that a remainder limits":    `r3 = *(u64 *)(r1 +112); *(u64 *)(r10 -8) = 0; w3 %= 8; r2 = r10; r2 += -8; r2 += r3; r0 = *(u8 *)(r2 +0); exit`,
	"bits that are tested":               `r3 = *(u64 *)(r1 +112); *(u64 *)(r10 -8) = 0; if r3 & -8 goto out; r2 = r10; r2 += -8; r2 += r3; r0 = *(u8 *)(r2 +0); exit; out: r0 = 0; exit`,

	// Loops.
	"a loop that fills an array": `r1 = 0; l: r2 = r10; r2 += -64; r2 += r1; r3 = 0; *(u64 *)(r2 +0) = r3; r1 += 8; if r1 != 64 goto l; r0 = 0; exit`,
	"a loop that sums up an array": `*(u64 *)(r10 -32) = 1; *(u64 *)(r10 -24) = 2; *(u64 *)(r10 -16) = 3; *(u64 *)(r10 -8) = 4
		r0 = 0; r1 = 0; l: r2 = r10; r2 += -32; r2 += r1; r3 = *(u64 *)(r2 +0); r0 += r3; r1 += 8; if r1 < 32 goto l; exit`,
	"a loop whose pointer moves":                    `r0 = 0; r2 = r10; r2 += -32; l: *(u64 *)(r2 +0) = 0; r2 += 8; if r2 != r10 goto l; exit`,
	"a loop that counts rounds and moves a pointer": `r0 = 0; r1 = 4; r2 = r10; r2 += -32; l: *(u64 *)(r2 +0) = 0; r2 += 8; r1 += -1; if r1 != 0 goto l; exit`,
	"a loop that counts with 32 bits":               `w1 = 0; r0 = 0; l: r2 = r10; r2 += -32; r2 += r1; *(u8 *)(r2 +0) = 0; w1 += 1; if w1 != 32 goto l; exit`,
	"a loop that counts down":                       `*(u64 *)(r10 -8) = 0; r1 = 8; l: r1 += -1; r2 = r10; r2 += -8; r2 += r1; r0 = *(u8 *)(r2 +0); if r1 s> 0 goto l; exit`,
	"a loop with a limit that is not known": `r6 = *(u64 *)(r1 +112); if r6 > 32 goto out; r1 = 0; r0 = 0; l: if r1 >= r6 goto out; r2 = r10; r2 += -32; r2 += r1; *(u8 *)(r2 +0) = 0; r1 += 1; goto l
		out: r0 = 0; exit`,
	"a loop whose counter is spilled":            `*(u64 *)(r10 -8) = 0; l: r1 = *(u64 *)(r10 -8); if r1 > 15 goto out; r2 = r10; r2 += -32; r2 += r1; *(u8 *)(r2 +0) = 1; r1 += 1; *(u64 *)(r10 -8) = r1; goto l; out: r0 = 0; exit`,
	"a loop whose counter is spilled as 32 bits": `*(u32 *)(r10 -4) = 0; l: r1 = *(u32 *)(r10 -4); if w1 > 15 goto out; r2 = r10; r2 += -32; r2 += r1; *(u8 *)(r2 +0) = 1; w1 += 1; *(u32 *)(r10 -4) = r1; goto l; out: r0 = 0; exit`,
	"two loops, one in the other":                `r1 = 0; r0 = 0; outer: r2 = 0; inner: r3 = r1; r3 <<= 2; r3 += r2; r4 = r10; r4 += -16; r4 += r3; *(u8 *)(r4 +0) = 7; r2 += 1; if r2 != 4 goto inner; r1 += 1; if r1 != 4 goto outer; exit`,
	"a loop without an end":                      `r0 = 0; l: r0 += 1; goto l`,
	"a loop that waits for memory": `*(u64 *)(r10 -8) = 7; r1 = map keyed; r2 = r10; r2 += -8; call map_cell; if r0 == 0 goto out
		l: r1 = *(u64 *)(r0 +0); if r1 != 5 goto l; out: r0 = 0; exit`,
	"a loop with two entries":  `r0 = *(u64 *)(r1 +112); r0 &= 7; if r0 > 3 goto b; a: r0 += 1; b: r0 += 1; if r0 < 20 goto a; exit`,
	"a loop with two exits":    `r6 = *(u64 *)(r1 +112); r1 = 0; r0 = 0; l: if r1 == r6 goto out; r2 = r10; r2 += -16; r2 += r1; *(u8 *)(r2 +0) = 7; r1 += 1; if r1 != 16 goto l; r0 = 1; out: exit`,
	"two counters of one loop": `r0 = 0; r1 = 0; r3 = 0; l: r2 = r10; r2 += -32; r2 += r3; *(u64 *)(r2 +0) = 0; r3 += 8; r1 += 1; if r1 != 4 goto l; exit`,

	"a lookup and an update": `r3 = *(u64 *)(r1 +112); *(u64 *)(r10 -8) = r3; r1 = map hash; r2 = r10; r2 += -8; call map_lookup_elem; if r0 != 0 goto have
		*(u64 *)(r10 -40) = 1; *(u64 *)(r10 -32) = 0; *(u64 *)(r10 -24) = 0; *(u64 *)(r10 -16) = 0; r1 = map hash; r2 = r10; r2 += -8; r3 = r10; r3 += -40; r4 = 0; call map_update_elem; r0 = 0; exit
		have: r1 = 1; lock add *(u64 *)(r0 +24), r1; r0 = 0; exit`,
	"an index into a value":                 `r6 = *(u64 *)(r1 +112); *(u32 *)(r10 -4) = 0; r1 = map array; r2 = r10; r2 += -4; call map_lookup_elem; if r0 == 0 goto out; r6 &= 56; r0 += r6; r1 = 1; lock add *(u64 *)(r0 +0), r1; out: r0 = 0; exit`,
	"a value by its address":                `r1 = value array +8; r2 = *(u32 *)(r1 +4); r1 += 48; *(u64 *)(r1 +0) = r2; r0 = 0; exit`,
	"a key and a value that lie in a value": `*(u64 *)(r10 -8) = 7; r1 = map hash; r2 = r10; r2 += -8; call map_lookup_elem; if r0 == 0 goto out; r1 = map hash; r2 = r0; r2 += 8; r3 = r0; r4 = 0; call map_update_elem; out: r0 = 0; exit`,
	"a deletion":                            `*(u64 *)(r10 -8) = 7; r1 = map hash; r2 = r10; r2 += -8; call map_delete_elem; r0 = 0; exit`,
	"a key of three bytes":                  `*(u16 *)(r10 -8) = 7; *(u8 *)(r10 -6) = 1; r1 = map odd; r2 = r10; r2 += -8; call map_lookup_elem; if r0 == 0 goto out; r1 = *(u16 *)(r0 +9); *(u8 *)(r0 +10) = r1; *(u64 *)(r0 +3) = r1; out: r0 = 0; exit`,
	"an index that a value holds":           `r1 = value array +0; r6 = *(u64 *)(r1 +0); if r6 > 7 goto out; r6 <<= 3; r1 += r6; r0 = *(u64 *)(r1 +0); exit; out: r0 = 0; exit`,

	// Kinds that differ.
	"a pointer on one path": `r6 = 0; r7 = *(u64 *)(r1 +112); *(u64 *)(r10 -8) = 7; if r7 == 0 goto a; r1 = map keyed; r2 = r10; r2 += -8; call map_cell; r6 = r0
		a: if r6 == 0 goto out; r1 = *(u64 *)(r6 +0); out: r0 = 0; exit`,
	"is it that one": `*(u64 *)(r10 -8) = 7; r6 = *(u64 *)(r1 +112); r1 = map keyed; r2 = r10; r2 += -8; call map_cell; r7 = r10; r7 += -16; r8 = r7; if r0 == 0 goto a; r8 = r0
		a: r0 = 0; if r8 == r7 goto out; r0 = *(u64 *)(r8 +0); out: exit`,
	"one of two places on the stack":           `*(u64 *)(r10 -8) = 7; *(u64 *)(r10 -16) = 9; r7 = *(u64 *)(r1 +112); r2 = r10; r2 += -8; if r7 == 0 goto a; r2 = r10; r2 += -16; a: r0 = *(u64 *)(r2 +0); exit`,
	"the stack or a value":                     `*(u64 *)(r10 -8) = 7; r6 = *(u64 *)(r1 +112); r1 = map keyed; r2 = r10; r2 += -8; call map_cell; if r0 != 0 goto a; r0 = r10; r0 += -8; a: r1 = *(u64 *)(r0 +0); r0 = r1; exit`,
	"a flag that says which":                   `r8 = 0; r6 = 0; r7 = *(u64 *)(r1 +112); if r7 == 0 goto a; r6 = r10; r6 += -8; *(u64 *)(r10 -8) = 1; r8 = 1; a: if r8 == 0 goto out; r1 = *(u64 *)(r6 +0); out: r0 = 0; exit`,
	"the same slot for a number and a pointer": `*(u64 *)(r10 -8) = r1; r7 = *(u64 *)(r1 +112); if r7 == 0 goto a; *(u64 *)(r10 -8) = r7; r0 = *(u64 *)(r10 -8); exit; a: r2 = *(u64 *)(r10 -8); r0 = *(u64 *)(r2 +104); exit`,

	// Functions.
	"a function": `r1 = 7; call @f; exit; f: r0 = r1; r0 *= r1; exit`,
	"a function that writes to its caller's stack": `r1 = r10; r1 += -8; call @f; r0 = *(u64 *)(r10 -8); exit; f: *(u64 *)(r1 +0) = 5; r0 = 0; exit`,
	"a function that is called with different things": `r6 = r1; r1 = r10; r1 += -8; r2 = 1; call @f; r1 = r6; r2 = 0; call @f; exit
		f: if r2 == 0 goto a; *(u64 *)(r1 +0) = 5; r0 = 0; exit; a: r0 = *(u64 *)(r1 +104); exit`,
	"a function that calls one":         `r1 = 7; call @f; r0 += 1; exit; f: r6 = r1; r1 += 1; call @g; r0 += r6; exit; g: r0 = r1; exit`,
	"a function that returns a pointer": `r6 = r1; r1 = r10; r1 += -8; call @f; *(u64 *)(r0 +0) = 3; r0 = *(u64 *)(r10 -8); exit; f: r0 = r1; exit`,
	"a function called in a loop":       `r6 = 0; r7 = 0; l: r1 = r6; call @f; r7 += r0; r6 += 1; if r6 != 10 goto l; r0 = r7; exit; f: r0 = r1; r0 <<= 1; exit`,
	"the caller's registers stay":       `r6 = r1; r1 = 1; call @f; r0 = *(u64 *)(r6 +112); exit; f: r6 = 4; r7 = 5; r0 = r6; exit`,
	"callx of a constant":               `r8 = 14; callx r8; r0 = 0; exit`,
	"the end of the run":                `call exit`,

	// Helpers.
	"if (len > 64) len = 64": `r6 = *(u64 *)(r1 +104); r3 = *(u64 *)(r1 +112); if r6 < 65 goto go; r6 = 64
		go: r1 = r10; r1 += -64; r2 = r6; call probe_read_user; r0 = 0; exit`,
	"len &= 63": `r6 = *(u64 *)(r1 +104); r3 = *(u64 *)(r1 +112); r6 &= 63; r1 = r10; r1 += -64; r2 = r6; call probe_read_user; r0 = 0; exit`,
	"a string that is passed on": `r3 = *(u64 *)(r1 +112); r1 = r10; r1 += -64; r2 = 64; call probe_read_user_str; if r0 s< 1 goto out; if r0 s> 64 goto out
		r1 = map events; r2 = r10; r2 += -64; r3 = r0; r4 = 0; call ringbuf_output; out: r0 = 0; exit`,
	"a string whose length is bounded by the helper": `r3 = *(u64 *)(r1 +112); r1 = r10; r1 += -64; r2 = 64; call probe_read_user_str; if r0 s< 1 goto out
		r1 = map events; r2 = r10; r2 += -64; r3 = r0; r4 = 0; call ringbuf_output; out: r0 = 0; exit`,
	"a record": `r1 = map events; r2 = 16; r3 = 0; call ringbuf_reserve; if r0 == 0 goto out; r1 = 5; *(u64 *)(r0 +8) = r1; r1 = r0; r2 = 0; call ringbuf_submit; out: r0 = 0; exit`,
	"a record on one path": `r6 = *(u64 *)(r1 +112); r7 = 0; if r6 == 0 goto a; r1 = map events; r2 = 16; r3 = 0; call ringbuf_reserve; r7 = r0
		a: if r7 == 0 goto out; *(u64 *)(r7 +0) = 1; r1 = r7; r2 = 0; call ringbuf_submit; out: r0 = 0; exit`,
	"a record that is discarded or submitted": `r6 = *(u64 *)(r1 +112); r1 = map events; r2 = 16; r3 = 0; call ringbuf_reserve; if r0 == 0 goto out; r1 = r0; r2 = 0; if r6 == 0 goto d; call ringbuf_submit; goto out; d: call ringbuf_discard; out: r0 = 0; exit`,
	"a record that a function submits":        `r1 = map events; r2 = 16; r3 = 0; call ringbuf_reserve; if r0 == 0 goto out; r1 = r0; call @f; out: r0 = 0; exit; f: *(u64 *)(r1 +0) = 1; r2 = 0; call ringbuf_submit; r0 = 0; exit`,
	"records in a loop":                       `r6 = 0; l: r1 = map events; r2 = 16; r3 = 0; call ringbuf_reserve; if r0 == 0 goto next; r1 = r0; r2 = 0; call ringbuf_discard; next: r6 += 1; if r6 != 100 goto l; r0 = 0; exit`,
	"bpf_loop": `*(u64 *)(r10 -8) = 0; r1 = 10; r2 = func f; r3 = r10; r3 += -8; r4 = 0; call loop; r0 = *(u64 *)(r10 -8); exit
		f: r3 = *(u64 *)(r2 +0); r3 += r1; *(u64 *)(r2 +0) = r3; r0 = 0; exit`,
	"bpf_loop over an array": `*(u64 *)(r10 -8) = 0; r1 = 8; r2 = func f; r3 = r10; r3 += -8; r4 = 0; call loop; r0 = 0; exit
		f: r2 += r1; *(u8 *)(r2 +0) = 1; r0 = 0; exit`,
	"bpf_loop that stops": `r1 = *(u64 *)(r1 +112); r2 = func f; r3 = 0; r4 = 0; call loop; r0 = 0; exit
		f: r0 = 0; if r1 < 100 goto go; r0 = 1; go: exit`,
	"bpf_loop that hands a pointer on": `*(u64 *)(r10 -8) = 7; r1 = map keyed; r2 = r10; r2 += -8; call map_cell; if r0 == 0 goto out; *(u64 *)(r10 -16) = r0
		r1 = 5; r2 = func f; r3 = r10; r3 += -16; r4 = 0; call loop; out: r0 = 0; exit
		f: r3 = *(u64 *)(r2 +0); *(u64 *)(r3 +8) = r1; r0 = 0; exit`,
	"for_each_map_elem": `*(u64 *)(r10 -8) = 0; r1 = map hash; r2 = func f; r3 = r10; r3 += -8; r4 = 0; call for_each_map_elem; r0 = *(u64 *)(r10 -8); exit
		f: r5 = *(u64 *)(r2 +0); r3 = *(u64 *)(r3 +24); r5 += r3; *(u64 *)(r4 +0) = r5; r0 = 0; exit`,
	"a stack and its number": `r6 = r1; r2 = map stacks; r3 = 256; call get_stackid; r1 = r6; r2 = r10; r2 += -128; r3 = 128; r4 = 256; call get_stack; if r0 s< 0 goto out; r0 = *(u64 *)(r10 -128); exit; out: r0 = 0; exit`,
	"an event for perf":      `*(u64 *)(r10 -8) = 1; r2 = map perf; r3 = 0xffffffff ll; r4 = r10; r4 += -8; r5 = 8; call perf_event_output; r0 = 0; exit`,
	"the time, the process and the rest": `r6 = r1; call ktime_get_ns; call get_current_pid_tgid; call get_current_uid_gid; r1 = r10; r1 += -16; r2 = 16; call get_current_comm; r0 = *(u64 *)(r10 -16)
		r1 = r6; call get_func_ip; r1 = r6; call get_attach_cookie; call get_prandom_u32; call get_smp_processor_id; r0 &= 7; r0 = 0; exit`,
	"a format":                               `r1 = 680997; *(u32 *)(r10 -4) = r1; r1 = r10; r1 += -4; r2 = 4; r3 = 5; call trace_printk; r0 = 0; exit`,
	"a field of a value that a helper fills": `*(u64 *)(r10 -8) = 7; r6 = *(u64 *)(r1 +112); r1 = map hash; r2 = r10; r2 += -8; call map_lookup_elem; if r0 == 0 goto out; r1 = r0; r1 += 8; r2 = 24; r3 = r6; call probe_read_user; out: r0 = 0; exit`,

	// Arithmetic.
	"the whole of it": `r0 = *(u64 *)(r1 +112); r2 = *(u64 *)(r1 +104); r0 += r2; r0 -= 5; r0 *= r2; r0 /= r2; r0 s/= 3; r0 %= r2; r0 s%= 7; r0 |= 1; r0 &= r2; r0 ^= -1
		r0 <<= r2; r0 >>= 3; r0 s>>= r2; r0 = -r0; r0 = be32 r0; r0 = le16 r0; r0 = bswap64 r0; r0 = (s8) r0; w0 += w2; w0 s>>= 3; w0 = -w0; w0 = (s16) w0; r3 = 0x123456789abcdef ll; r0 += r3; exit`,
	"atomic operations": `r0 = 1; r2 = 5; *(u64 *)(r10 -8) = 7; lock add *(u64 *)(r10 -8), r2; lock fetch_add *(u64 *)(r10 -8), r2; lock fetch_and *(u32 *)(r10 -8), r2
		lock xchg *(u64 *)(r10 -8), r2; lock cmpxchg *(u32 *)(r10 -4), r2; lock xor *(u32 *)(r10 -4), r2; exit`,
}

func TestVerifyAccepts(t *testing.T) {
	for name, text := range acceptedTexts {
		if _, err := verify(textProgram(t, name, text), options{missing: true}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestVerifyEffort tells which programs need more than the first effort.
func TestVerifyEffort(t *testing.T) {
	want := map[string]int{
		"a flag that says which": 2, "a pointer on one path": 2, "is it that one": 2, "the stack or a value": 2,
		"a loop that counts rounds and moves a pointer": 3, "two counters of one loop": 3,
	}
	for name, text := range acceptedTexts {
		p := textProgram(t, name, text)
		n := 1
		for ; n <= len(efforts); n++ {
			if _, err := verify(p, options{effort: n, missing: true}); err == nil {
				break
			}
		}
		if n != max(1, want[name]) {
			t.Errorf("%s needs effort %d", name, n)
		}
	}
}
