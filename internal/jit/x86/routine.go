package x86

import (
	"fmt"

	bpfasm "github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
	asm "trapless/internal/asm/x86"
	"trapless/internal/bpf"
	"trapless/internal/bpf/routine"
)

// compiled is a routine that was written in eBPF.
type compiled struct {
	at    abi.Addr
	stack int // what a call of it needs of the stack, in bytes
}

// mapRoutines are the routines of one map.
type mapRoutines struct{ lookup, lookupSlot, update, remove, next, stack compiled }

// compile compiles a routine of so many arguments. It takes them from the
// stack, as all routines of the runtime do.
func (r *routineMaker) compile(p *bpf.Program, args int) (compiled, error) {
	v, err := bpf.Trust(p)
	if err != nil {
		return compiled{}, fmt.Errorf("BUG: %w", err)
	}
	r.Align(routineAlign)
	at := r.PC()
	g, err := generate(r.Asm, []*bpf.Verified{v}, Site{LiveRegs: allRegisters, stackArgs: args}, r.env)
	if err != nil {
		return compiled{}, fmt.Errorf("%s: %w", p.Name, err)
	}
	r.Ret()
	g.emitCold()
	const returnAddress = 8
	return compiled{at, int(g.frame.deepest) + returnAddress + 8*args}, nil
}

const allRegisters = asm.RegSet(0xffff)

// routineMaker compiles routines one after the other.
type routineMaker struct {
	*asm.Asm
	env *Env
}

// maps compiles the routines of all maps.
func (r *routineMaker) maps() ([]mapRoutines, error) {
	out := make([]mapRoutines, len(r.env.Layout.Maps))
	for i := range out {
		ml := &r.env.Layout.Maps[i]
		if ml.IsRing() || ml.Kind == abi.PerThread { // these are inlined
			continue
		}
		var err error
		if ml.Kind == abi.StackTrace {
			if out[i].stack, err = r.compile(routine.StackID(ml, r.env.Layout, r.env.Arena), 3); err != nil {
				return nil, err
			}
			continue
		}
		if out[i].update, err = r.compile(routine.Update(ml, r.env.Arena), 4); err != nil {
			return nil, err
		}
		if out[i].next, err = r.compile(routine.Next(ml, r.env.Arena), 2); err != nil {
			return nil, err
		}
		if !ml.Shared() {
			if out[i].lookupSlot, err = r.compile(routine.LookupSlot(ml, r.env.Layout, r.env.Arena), 2); err != nil {
				return nil, err
			}
		}
		if !ml.IsHash() {
			continue
		}
		if out[i].lookup, err = r.compile(routine.Lookup(ml, r.env.Arena), 2); err != nil {
			return nil, err
		}
		if !ml.IsTable() {
			continue
		}
		if out[i].remove, err = r.compile(routine.Delete(ml, r.env.Arena), 1); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// helpers compiles the helpers that are routines.
func (r *routineMaker) helpers() (map[bpfasm.BuiltinFunc]compiled, error) {
	out := map[bpfasm.BuiltinFunc]compiled{}
	for _, h := range routine.Helpers() {
		args := 1 // the place of the result
		if d, _ := bpf.LookupHelper(h.ID); d != nil {
			args = max(1, d.NumArgs())
		}
		if h.Slot {
			args++
		}
		c, err := r.compile(h.Program(&r.env.Memory), args)
		if err != nil {
			return nil, err
		}
		out[h.ID] = c
	}
	c, err := r.compile(routine.GetStack(r.env.Layout, r.env.Arena), 5)
	if err != nil {
		return nil, err
	}
	out[bpfasm.FnGetStack] = c
	return out, nil
}
