package bpf

import (
	"encoding/binary"

	"github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
)

// UserStack is the flag of get_stack and get_stackid that asks for the stack of the
// process (BPF_F_USER_STACK in include/uapi/linux/bpf.h). There is no other here.
const UserStack = 1 << 8

// walkStack is get_stack or get_stackid. Of the stack the interpreter knows the
// innermost frame, the context's address.
func (x *run) walkStack(h *Helper) (uint64, error) {
	if x.ctx == nil {
		return 0, x.fail(ErrAccess, "there is no context")
	}
	var frames []uint64
	if ip := x.ctx[PtRegsIP/8]; ip != 0 {
		frames = append(frames, ip)
	}
	if h.ID == asm.FnGetStackid {
		m, err := x.mapArg(asm.R2)
		if err != nil {
			return 0, err
		}
		return uint64(x.stackID(&x.Layout.Maps[m], frames)), nil
	}
	buf, err := x.bytes(x.r[asm.R2], int(uint32(x.r[asm.R3])), true)
	if err != nil {
		return 0, err
	}
	clear(buf)
	n := min(len(frames), len(buf)/8)
	for i, f := range frames[:n] {
		binary.LittleEndian.PutUint64(buf[8*i:], f)
	}
	return uint64(8 * n), nil
}

// stackID enters a stack in a map of stacks and returns its number, as routine
// StackID does.
func (x *run) stackID(ml *abi.MapLayout, frames []uint64) int64 {
	hash := uint64(abi.HashMul)
	for _, f := range frames {
		hash = (hash ^ f) * abi.HashMul
		hash ^= hash >> 29
	}
	hash = max(hash, 1)
	pos := uint64(0)
	if ml.DirBits > 0 {
		pos = hash * abi.HashMul >> (64 - ml.DirBits)
	}
	for range min(abi.StackTries, 1<<ml.DirBits) {
		at := ml.Value(pos)
		if swapWord(x.Arena, at-8-8, 0, hash) || loadWord(x.Arena, at-8-8) == hash {
			for i, f := range frames {
				storeWord(x.Arena, at+8*uint64(i), f)
			}
			storeWord(x.Arena, at-8, uint64(len(frames)))
			return int64(pos)
		}
		pos = (pos + 1) & (1<<ml.DirBits - 1)
	}
	addWord(x.Arena, abi.HdrDrops, 1)
	return errExist
}
