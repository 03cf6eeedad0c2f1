package coverage

import (
	"trapless/internal/abi"
	"trapless/internal/image"
	"trapless/internal/plan"
)

// Where Linux puts things on x86-64 (arch/x86/include/asm/elf.h, mm/mmap.c): a
// position-independent program above two thirds of the address space, libraries
// next to each other up to 1 TB below the stack, at random. The heap begins up to 1 GB behind a
// program, at random (arch_randomize_brk in arch/x86/kernel/process.c); half of
// that is assumed.
const (
	programBias = 0x555555554000
	libraryBias = 0x7f0000000000
	heapGap     = 512 << 20
	neighbours  = 32 << 20 // what other libraries take on each side, in bytes
)

// typical is the place of a file in a process, and the address space around it.
func typical(f *image.File) (image.Bias, *plan.Space) {
	var bias image.Bias
	library := f.Kind == image.Dyn && !f.PIE
	switch {
	case library:
		bias = libraryBias
	case f.Kind == image.Dyn:
		bias = programBias
	}
	var whole abi.Range
	for i := range f.Segments {
		s := &f.Segments[i]
		r := abi.Range{Start: bias.Addr(s.Addr).PageDown(), End: bias.Addr(s.Addr + image.VAddr(s.MemSize)).PageUp()}
		if i == 0 {
			whole = r
		}
		whole.Start, whole.End = min(whole.Start, r.Start), max(whole.End, r.End)
	}
	c := plan.SpaceConfig{Maps: []plan.Mapping{{Range: whole}}}
	if library {
		c.Maps[0].Range.Start -= neighbours
		c.Maps[0].Range.End += neighbours
	} else {
		c.Brk = whole.End + heapGap
	}
	return bias, plan.NewSpace(c)
}
