package bpf

import (
	"github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
)

// maxLoop is the largest number of rounds of bpf_loop (include/linux/bpf.h,
// BPF_MAX_LOOPS).
const maxLoop = 1 << 23

// loop is a bpf_loop or a for_each_map_elem that runs.
type loop struct {
	fn    *Func
	count uint64 // of rounds, at most
	round uint64
	arg   uint64

	ml  *abi.MapLayout // whose entries are gone through; nil in a bpf_loop
	m   int            // its number
	pos uint64         // that is looked at next
	key []byte         // of the entry
}

// callback is helper bpf_loop (count, function, argument, flags): it calls the
// function with the number of the round and the argument, until it returns
// something else than 0, and returns the number of rounds. Or it is
// for_each_map_elem (map, function, argument, flags), which calls the function with
// the map, a key, its value and the argument.
func (x *run) callback() error {
	for r := asm.R1; r <= asm.R4; r++ {
		if _, err := x.get(r); err != nil {
			return err
		}
	}
	l := &loop{count: x.r[asm.R1], arg: x.r[asm.R3]}
	if x.code.Insns[x.at].Helper() == asm.FnForEachMapElem {
		if err := x.eachOf(l); err != nil {
			return err
		}
	}
	for i := range x.code.Funcs {
		if f := &x.code.Funcs[i]; i > 0 && funcRef(f.Start) == x.r[asm.R2] {
			l.fn = f
		}
	}
	switch {
	case l.fn == nil:
		return x.fail(ErrAccess, "r2 is no function")
	case x.r[asm.R4] != 0:
		return x.fail(ErrAccess, "the flags are not 0")
	case len(x.frames) == MaxFrames:
		return x.fail(ErrAccess, "more than %d functions are active", MaxFrames)
	}
	back := x.at + 1
	x.have &^= 0x3f
	if l.count > maxLoop && l.ml == nil {
		e := int64(errTooBig)
		x.set(asm.R0, uint64(e))
		x.at = back
		return nil
	}
	x.push(back)
	x.frames[len(x.frames)-1].loop = l
	return x.round(l)
}

// eachOf prepares a for_each_map_elem.
func (x *run) eachOf(l *loop) error {
	m, err := x.mapArg(asm.R1)
	if err != nil {
		return err
	}
	l.m, l.ml, l.count = m, &x.Layout.Maps[m], ^uint64(0)
	if !helperByID[asm.FnForEachMapElem].TakesMap(l.ml.Kind) {
		return x.fail(ErrAccess, "for_each_map_elem does not work on map %s", l.ml.Name)
	}
	return nil
}

// round calls the function once more, or ends the loop.
func (x *run) round(l *loop) error {
	var value uint64
	if l.round < l.count && l.ml != nil {
		found, err := x.nextEntry(l)
		if err != nil {
			return err
		}
		if !found {
			l.count = l.round
		}
		value = x.valueAddr(l.m, l.pos-1)
	}
	if l.round == l.count {
		x.set(asm.R0, l.round)
		x.pop()
		return nil
	}
	if err := x.spend(l.fn.End - l.fn.Start); err != nil {
		return err
	}
	f := x.frames[len(x.frames)-1]
	f.written = [StackSize]bool{}
	x.have = 1 << asm.R10
	if l.ml != nil {
		x.set(asm.R1, mapRef(int64(l.m)))
		x.set(asm.R2, keyAddr+uint64(len(x.frames)-1)*frameStride)
		x.set(asm.R3, value)
		x.set(asm.R4, l.arg)
	} else {
		x.set(asm.R1, l.round)
		x.set(asm.R2, l.arg)
	}
	x.at = l.fn.Start
	return nil
}

// again is the end of a round.
func (x *run) again(l *loop) error {
	l.round++
	if x.r[asm.R0] != 0 {
		l.count = l.round
	}
	return x.round(l)
}

// nextEntry finds the next entry of a map, in the order of positions. What comes or
// goes meanwhile may be seen or not.
func (x *run) nextEntry(l *loop) (bool, error) {
	for i := 0; ; i++ {
		if i%EachPositions == 0 {
			if err := x.spend(CostEach); err != nil {
				return false, err
			}
		}
		if l.pos >= uint64(l.ml.Positions()) {
			return false, nil
		}
		words, ok := x.entryAt(l.ml, l.pos)
		l.pos++
		if ok {
			l.key = wordBytes(words)[:l.ml.KeySize]
			return true, nil
		}
	}
}

// entryAt is the key of the entry at a position, if there is one.
func (x *run) entryAt(ml *abi.MapLayout, pos uint64) (key []uint64, ok bool) {
	switch {
	case !ml.IsHash():
		return []uint64{pos}, true
	case ml.IsTable():
		return x.tableEntry(ml, pos)
	}
	word := loadWord(x.Arena, ml.Dir+8*pos)
	switch {
	case word == 0:
		return nil, false
	case ml.KeyWords() > 1:
		n := uint64(uint32(word)) - 1
		if n >= uint64(ml.NodeCount) {
			return nil, false
		}
		for i := range ml.KeyWords() {
			key = append(key, loadWord(x.Arena, nodeWord(ml, n, i)))
		}
		return key, true
	case pos == 1<<ml.DirBits:
		word = 0
	}
	return []uint64{word ^ uint64(int64(ml.KeyMask))}, true
}

func (x *run) tableEntry(ml *abi.MapLayout, pos uint64) (key []uint64, ok bool) {
	state := loadWord(x.Arena, ml.State(pos))
	if phase(state) != abi.PhasePresent {
		return nil, false
	}
	if ml.KeyWords() == 1 {
		key = append(key, loadWord(x.Arena, ml.Word(pos)))
	} else {
		for i := range ml.KeyWords() {
			key = append(key, loadWord(x.Arena, ml.KeyWord(pos, i)))
		}
	}
	return key, (loadWord(x.Arena, ml.State(pos))^state)&^abi.StateUsed == 0
}
