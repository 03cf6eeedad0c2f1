package plan

import (
	"cmp"
	"maps"
	"slices"

	"trapless/internal/abi"
	insn "trapless/internal/insn/x86"
)

// By the System V ABI the status flags mean nothing at calls and returns. Code in
// assembly may agree otherwise, so a sweep looks whether a module has such code:
// functions that read flags which they did not set, and calls behind which flags
// are read. Compiled code has neither.

// flagUse follows the flags behind each call and each function's start.
type flagUse struct {
	text Data

	// What is followed at the moment.
	open     insn.Flags // not overwritten yet
	start    abi.Addr   // of the function that was entered, 0 behind a call
	callee   abi.Addr   // of the call, 0 if that is not known
	passed   int
	followed int // instructions behind jumps

	reading []abi.Addr    // functions that read flags before they set them
	passing [][2]abi.Addr // functions that pass the flags on, unchanged, to others
	left    []leftFlags
}

// leftFlags: behind a call of callee (0: some function) flags are read.
type leftFlags struct{ callee, at abi.Addr }

// enter begins to follow the flags at a function's start.
func (u *flagUse) enter(start abi.Addr) {
	u.open, u.start, u.callee, u.followed, u.passed = insn.StatusFlags, start, 0, 0, 0
}

// pass lets an instruction pass.
func (u *flagUse) pass(in *insn.Inst, at abi.Addr) {
	if u.open != 0 {
		if u.open = u.behind(u.open, in, at); u.open == readFlags {
			u.open = 0
			if u.start != 0 {
				u.reading = append(u.reading, u.start)
			} else {
				u.left = append(u.left, leftFlags{u.callee, at})
			}
		}
	}
	if in.Branch == insn.BranchCall || in.Branch == insn.BranchCallInd {
		u.open, u.start, u.followed = insn.StatusFlags, 0, 0
		u.callee, _ = in.Target(at)
	}
}

// readFlags stands for flags of which at least one is read.
const readFlags = ^insn.Flags(0)

// Limits of what is looked at behind one call or one function's start:
// instructions behind jumps, and functions that the flags are passed on to.
const (
	followMost = 400
	passedMost = 8
)

// behind says which of some flags are still those that they were behind an
// instruction: 0 also where nobody asks for them any more.
func (u *flagUse) behind(open insn.Flags, in *insn.Inst, at abi.Addr) insn.Flags {
	switch in.Branch {
	case insn.BranchNone:
	case insn.BranchCall, insn.BranchJmp:
		to, _ := in.Target(at)
		if u.start != 0 {
			if u.passed++; u.passed > passedMost {
				return readFlags
			}
			u.passing = append(u.passing, [2]abi.Addr{u.start, to})
		}
		if in.Branch == insn.BranchJmp {
			return u.follow(open, to)
		}
		return 0
	case insn.BranchJcc, insn.BranchLoop:
		if to, _ := in.Target(at); in.Effects().FlagsRead&open != 0 || u.follow(open, to) == readFlags {
			return readFlags
		}
		return open
	default: // a return, a jump to another function, a system call, which keeps them
		return 0
	}
	e := in.Effects()
	if e.FlagsRead&open != 0 {
		return readFlags
	}
	if isCompare(in) {
		return 0
	}
	return open &^ (e.FlagsMust | e.FlagsUndef)
}

// follow follows a jump. What is still open in the end counts as read.
func (u *flagUse) follow(open insn.Flags, to abi.Addr) insn.Flags {
	for u.followed < followMost {
		u.followed++
		if to < u.text.Start || to >= u.text.Start+abi.Addr(len(u.text.Bytes)) {
			return 0 // it is no code of this module
		}
		in, err := insn.Decode(u.text.Bytes[to-u.text.Start:], insn.Mode64)
		if err != nil {
			return 0
		}
		open = u.behind(open, &in, to)
		if open == 0 || open == readFlags {
			return open
		}
		to += abi.Addr(in.Len)
	}
	return readFlags
}

// isCompare reports repeated cmps and scas. They set the flags unless their count
// is 0, and compilers do not ask then.
func isCompare(in *insn.Inst) bool {
	return isPlain(in) && in.Prefixes&(insn.PrefixRep|insn.PrefixRepne) != 0 && (in.Opcode&^1 == 0xa6 || in.Opcode&^1 == 0xae)
}

// finish lets functions that pass flags on to readers count as readers, and
// forgets about what is left behind calls that do not return, or that are no
// calls of code but data that look so.
func (u *flagUse) finish(noReturn []abi.Addr, code func(abi.Addr) bool) {
	slices.SortFunc(u.passing, func(x, y [2]abi.Addr) int { return cmp.Compare(x[1], y[1]) })
	readers := map[abi.Addr]bool{}
	queue := slices.Clone(u.reading)
	for len(queue) > 0 {
		at := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		if readers[at] {
			continue
		}
		readers[at] = true
		i, _ := slices.BinarySearchFunc(u.passing, at, func(p [2]abi.Addr, a abi.Addr) int { return cmp.Compare(p[1], a) })
		for ; i < len(u.passing) && u.passing[i][1] == at; i++ {
			queue = append(queue, u.passing[i][0])
		}
	}
	u.reading = slices.Sorted(maps.Keys(readers))
	u.left = slices.DeleteFunc(u.left, func(l leftFlags) bool {
		_, ends := slices.BinarySearch(noReturn, l.callee)
		return ends || !code(l.at) || l.callee != 0 && !code(l.callee)
	})
	u.passing, u.text = nil, Data{}
}

// reads reports whether a function reads flags before it sets them.
func (u *flagUse) reads(start abi.Addr) bool {
	_, ok := slices.BinarySearch(u.reading, start)
	return ok
}
