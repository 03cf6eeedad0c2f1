package plan

// owners are numbers for the bytes of a function, 0 at first. Most functions are
// asked for few sites, so they are kept in pieces that are made when needed.
type owners struct {
	pieces [][]int32
	size   int
}

const pieceSize = 256

func newOwners(size int) owners {
	return owners{make([][]int32, (size+pieceSize-1)/pieceSize), size}
}

func (o *owners) at(i int) int32 {
	if p := o.pieces[i/pieceSize]; p != nil {
		return p[i%pieceSize]
	}
	return 0
}

func (o *owners) set(i int, owner int32) {
	p := &o.pieces[i/pieceSize]
	if *p == nil {
		*p = make([]int32, pieceSize)
	}
	(*p)[i%pieceSize] = owner
}
