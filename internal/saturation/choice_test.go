package saturation

import (
	"fmt"
	"hash/fnv"
)

// choice takes one of every so many instructions at random. Few sites make
// windows for themselves, many share them: the shapes of windows differ with
// the choice.
type choice struct {
	every int
	seed  uint64
	only  string // how the names of functions begin, "" for all
}

func (c choice) takes(p place) bool {
	if c.every == 1 {
		return true
	}
	h := fnv.New64a()
	fmt.Fprintf(h, "%d %s %d", c.seed, p.module, uint64(p.at))
	return h.Sum64()>>20%uint64(c.every) == 0
}

func (c choice) String() string {
	text := fmt.Sprintf("one of %d, seed %d", c.every, c.seed)
	if c.only != "" {
		text += ", " + c.only
	}
	return text
}
