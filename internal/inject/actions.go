package inject

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"trapless/internal/abi"
	"trapless/internal/proc"
	"trapless/internal/ptrace"
)

// action is a struct kernel_sigaction.
type action struct{ handler, flags, restorer, mask uint64 }

func decodeAction(b []byte) action {
	w := func(off int) uint64 { return binary.LittleEndian.Uint64(b[off:]) }
	return action{w(actionHandler), w(actionFlags), w(actionRestorer), w(actionMask)}
}

func (a action) encode() []byte {
	var out []byte
	for _, w := range []uint64{a.handler, a.flags, a.restorer, a.mask} {
		out = binary.LittleEndian.AppendUint64(out, w)
	}
	return out
}

// ours is the action that stands before the target's own one: its handler runs
// in the state in which the kernel would have called the target's. Where the target
// has none, no signal comes in it: the alternate stack may have no room for the
// target's other handlers, which do not ask for it.
func (a action) ours(handler, restorer abi.Addr) action {
	if a.handler == sigDfl || a.handler == sigIgn {
		a = action{flags: saOnStack | saNoDefer, mask: ^uint64(0)}
	}
	a.flags = a.flags&^saResetHand | saSiginfo | saRestorer
	a.handler, a.restorer = uint64(handler), uint64(restorer)
	return a
}

// installActions puts our handlers before the target's own for the signals.
// All threads have to be stopped: between the look at an action and its change
// the target must not change it.
func (t *Target) installActions(ctx context.Context, signals []int) error {
	current, err := t.readActions(ctx, t.handlers.current().data, signals)
	if err != nil {
		return err
	}
	used, err := t.freshHandlers(signals, current)
	if err != nil {
		return err
	}
	h := t.handlers.current()
	var b ptrace.Blob
	var installed []int
	for i, sig := range signals {
		if current[i].handler == uint64(h.handler) {
			continue
		}
		if err := t.mem.WriteAt(current[i].encode(), h.data+abi.Addr(dataOld+actionSize*sig)); err != nil {
			return err
		}
		at := h.data + abi.Addr(dataNow+actionSize*sig)
		if err := t.mem.WriteAt(current[i].ours(h.handler, h.restorer).encode(), at); err != nil {
			return err
		}
		// The kernel tells the old action once more, in case we die before the call and the
		// target changes it meanwhile.
		old := ptrace.AddrArg(h.data + abi.Addr(dataOld+actionSize*sig))
		b.Call(sysSigaction, ptrace.Const(uint64(sig)), ptrace.AddrArg(at), old, ptrace.Const(kernelSigsize))
		installed = append(installed, sig)
		used |= 1 << sig
	}
	if installed == nil {
		return nil
	}
	if err := t.mem.WriteAt(words([]uint64{used}), h.data+dataUsed); err != nil {
		return err
	}
	for _, sig := range installed {
		e := entry{kind: entryAction, state: statePending, a: uint64(sig), b: uint64(h.handler), c: uint64(h.data)}
		if _, err := t.record(e); err != nil {
			return err
		}
	}
	return t.runCalls(ctx, &b, "rt_sigaction")
}

// freshHandlers takes another copy of the handlers where one that was installed
// before would go in a circle: a handler that the target installed meanwhile has
// ours as its "old action", and may call it for what is not its own business; ours
// must then not come before that one. It returns the signals of dataUsed.
func (t *Target) freshHandlers(signals []int, current []action) (uint64, error) {
	h := &t.handlers
	for {
		var block [dataBlock]byte
		if err := t.mem.ReadAt(block[:], h.current().data); err != nil {
			return 0, err
		}
		used, circle := binary.LittleEndian.Uint64(block[dataUsed:]), false
		for i, sig := range signals {
			before := decodeAction(block[dataOld+actionSize*sig:])
			circle = circle || used>>sig&1 != 0 && current[i].handler != uint64(h.current().handler) && current[i].handler != before.handler
		}
		if !circle || h.block == dataBlocks-1 {
			return used, nil
		}
		h.block++
		if err := t.pointTables(); err != nil {
			return 0, err
		}
	}
}

// readActions asks the target for its current actions.
func (t *Target) readActions(ctx context.Context, data abi.Addr, signals []int) ([]action, error) {
	var b ptrace.Blob
	for _, sig := range signals {
		at := data + abi.Addr(dataNow+actionSize*sig)
		b.Call(sysSigaction, ptrace.Const(uint64(sig)), ptrace.Const(0), ptrace.AddrArg(at), ptrace.Const(kernelSigsize))
	}
	if err := t.runCalls(ctx, &b, "rt_sigaction"); err != nil {
		return nil, err
	}
	var out []action
	for _, sig := range signals {
		var raw [actionSize]byte
		if err := t.mem.ReadAt(raw[:], data+abi.Addr(dataNow+actionSize*sig)); err != nil {
			return nil, err
		}
		out = append(out, decodeAction(raw[:]))
	}
	return out, nil
}

// returnActions gives the target its own actions back, where ours are still the
// current ones. All threads have to be stopped. A journal of the target's own is
// believed about what was done, and marked; one of its parent is not.
func (t *Target) returnActions(ctx context.Context, j *journal, owned bool) (int, error) {
	var pending []int
	ofBlock := map[abi.Addr][]int{} // the signals of each data block
	maps, err := proc.ReadMaps(t.PID)
	if err != nil {
		return 0, err
	}
	for _, i := range j.actions {
		e := &j.entries[i]
		if owned && e.state != statePending {
			continue
		}
		if e.a == 0 || e.a > sigSEGV || !isDataBlock(maps, abi.Addr(e.c)) {
			return 0, fmt.Errorf("process %d: the journal names a signal handler at %#x that is none: the target wrote over it", t.PID, e.b)
		}
		pending = append(pending, i)
		if block := abi.Addr(e.c); !slices.Contains(ofBlock[block], int(e.a)) {
			ofBlock[block] = append(ofBlock[block], int(e.a))
		}
	}
	now := map[[2]uint64]action{} // by block and signal
	for block, signals := range ofBlock {
		current, err := t.readActions(ctx, block, signals)
		if err != nil {
			return 0, err
		}
		for k, sig := range signals {
			now[[2]uint64{uint64(block), uint64(sig)}] = current[k]
		}
	}
	n, b := 0, ptrace.Blob{}
	for _, i := range pending {
		if e := &j.entries[i]; now[[2]uint64{e.c, e.a}].handler == e.b {
			delete(now, [2]uint64{e.c, e.a})
			old := abi.Addr(e.c) + abi.Addr(dataOld+actionSize*e.a)
			b.Call(sysSigaction, ptrace.Const(e.a), ptrace.AddrArg(old), ptrace.Const(0), ptrace.Const(kernelSigsize))
			n++
		}
	}
	if n > 0 {
		if err := t.runCalls(ctx, &b, "rt_sigaction"); err != nil {
			return 0, err
		}
	}
	for _, i := range pending {
		if owned {
			if err := j.setState(i, stateUndone); err != nil {
				return n, err
			}
		}
	}
	return n, nil
}

// runCalls runs a blob of which every call has to succeed.
func (t *Target) runCalls(ctx context.Context, b *ptrace.Blob, name string) error {
	results, err := t.group.Run(ctx, b)
	if err != nil {
		return err
	}
	for _, r := range results {
		if errno(r) != nil {
			return t.callFailed(name, r)
		}
	}
	return nil
}
