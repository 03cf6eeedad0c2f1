package inject

import (
	"fmt"
	"maps"
	"slices"

	"trapless/internal/abi"
)

// What the verifier and the compiler have concluded from the contents of a map
// that nothing writes to, an object file's .rodata, holds only as long as nobody
// writes there. The arena is shared, with the target and with whoever else has
// its descriptor. So the contents lie beside the detours that read them: private
// memory, which even the target cannot write to.

// constantsOf are the contents of such maps of all programs, by the maps' numbers.
// The programs of a session number their maps alike.
func constantsOf(reqs []Request) map[int][]byte {
	all := map[int][]byte{}
	for _, req := range reqs {
		for _, programs := range req.Programs {
			for _, p := range programs {
				maps.Copy(all, p.Code().Constants)
			}
		}
	}
	return all
}

// constantsIn finds or writes the contents in a region, and says where they are.
func (b *builder) constantsIn(r *Region) (map[int]abi.Addr, error) {
	if at, ok := b.constants[r]; ok {
		return at, nil
	}
	at := map[int]abi.Addr{}
	for _, n := range slices.Sorted(maps.Keys(b.contents)) {
		there, ok, err := b.putIn(r, keyConstants, func(*Region, abi.Addr) ([]byte, error) { return b.contents[n], nil })
		if err != nil {
			return nil, err
		}
		if !ok {
			return nil, fmt.Errorf("process %d: %w: the code region at %s is full", b.PID, ErrNoRoom, r.Start)
		}
		at[n] = there
	}
	b.constants[r] = at
	return at, nil
}
