package plan

import "math/bits"

// marks is a set of numbers below a limit that knows in constant time how many
// of them are below a given one.
type marks struct {
	words []uint64
	below []int32 // for each word, how many marks precede it; made by count
}

// newMarks makes an empty set of numbers below n.
func newMarks(n int) marks { return marks{words: make([]uint64, (n+63)/64)} }

func (m *marks) add(i int)      { m.words[i>>6] |= 1 << (i & 63) }
func (m *marks) remove(i int)   { m.words[i>>6] &^= 1 << (i & 63) }
func (m *marks) has(i int) bool { return m.words[i>>6]>>(i&63)&1 != 0 }

// union adds the marks of a set for as many numbers.
func (m *marks) union(o marks) {
	for i, w := range o.words {
		m.words[i] |= w
	}
}

// count makes rank usable, and says how many marks there are. It counts what
// is there at this time.
func (m *marks) count() int {
	m.below = make([]int32, len(m.words))
	n := 0
	for i, w := range m.words {
		m.below[i] = int32(n)
		n += bits.OnesCount64(w)
	}
	return n
}

// rank is how many marks are below i.
func (m *marks) rank(i int) int {
	return int(m.below[i>>6]) + bits.OnesCount64(m.words[i>>6]&(1<<(i&63)-1))
}
