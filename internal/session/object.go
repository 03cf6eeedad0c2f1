package session

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
	"trapless/internal/arena"
	"trapless/internal/bpf"
)

// ObjectSink takes what the programs of a BPF object file write, in its order. An
// error ends the session. Its methods must not call the session.
type ObjectSink interface {
	// Record takes a record of the ring that is map number r.Map.
	Record(r arena.Record) error
	// Print takes a text of trace_printk, with the line end if the program wrote
	// one.
	Print(text string) error
	// End comes when nothing runs any more. read reads a map by its number.
	End(read func(n int) []arena.Raw) error
}

// Content is an entry of map number Map.
type Content struct {
	Map        int
	Key, Value []byte
}

// Errors of changes of maps; two of them are those of package ebpf.
var (
	ErrKeyExist    = ebpf.ErrKeyExist
	ErrKeyNotExist = ebpf.ErrKeyNotExist
	ErrMapFull     = errors.New("the map is full, or the index is out of range")
)

// ReadMap is what map number n holds. It fails with ErrEnded after Close.
func (s *Session) ReadMap(n int) ([]arena.Raw, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, s.over()
	}
	return s.arena.Raw(n), nil
}

// LookupKey reads the entry of map number n that a key has. It fails with
// ErrKeyNotExist, and with ErrEnded after Close.
func (s *Session) LookupKey(n int, key []byte) (arena.Raw, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return arena.Raw{}, s.over()
	}
	r, ok := s.arena.RawOf(n, key)
	if !ok {
		return r, ErrKeyNotExist
	}
	return r, nil
}

// UpdateMap does map_update_elem on map number n, whose values all threads share,
// with the kernel's flags BPF_ANY, BPF_NOEXIST or BPF_EXIST.
func (s *Session) UpdateMap(n int, key, value []byte, flags uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.atWork(); err != nil {
		return err
	}
	return s.update(n, key, value, flags)
}

// DeleteKey does map_delete_elem on map number n.
func (s *Session) DeleteKey(n int, key []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.atWork(); err != nil {
		return err
	}
	return s.callOnMap(n, asm.FnMapDeleteElem, key, nil, 0)
}

func (s *Session) update(n int, key, value []byte, flags uint64) error {
	return s.callOnMap(n, asm.FnMapUpdateElem, key, value, flags)
}

// callOnMap has the interpreter call a helper, as a program would: the target runs
// its own on the same map at the same time.
func (s *Session) callOnMap(n int, helper asm.BuiltinFunc, key, value []byte, flags uint64) error {
	spec := s.machine.Layout.Maps[n].MapSpec
	memory := slices.Concat(key, make([]byte, -len(key)&7), value)
	p := &bpf.Program{Name: helper.String(), Input: bpf.Input{Memory: true, Size: len(memory)}, Maps: []abi.MapSpec{}}
	for i := range s.machine.Layout.Maps {
		p.Maps = append(p.Maps, s.machine.Layout.Maps[i].MapSpec)
	}
	p.Insns = asm.Instructions{
		asm.Mov.Reg(asm.R2, asm.R1),
		asm.Mov.Reg(asm.R3, asm.R1),
		asm.Add.Imm(asm.R3, int32(len(memory)-len(value))),
		bpf.LoadMap(asm.R1, n),
		asm.Mov.Imm(asm.R4, int32(flags)),
		bpf.Call(helper),
		asm.Return(),
	}
	v, err := bpf.Verify(p)
	if err != nil {
		return fmt.Errorf("map %s: %w", spec.Name, err)
	}
	r, err := s.machine.RunMemory(v, memory)
	if err != nil {
		return fmt.Errorf("map %s: %w", spec.Name, err)
	}
	return helperError(spec.Name, int64(r))
}

// helperError is what a helper's result means (include/uapi/asm-generic/errno-base.h).
func helperError(name string, result int64) error {
	reason := map[int64]error{-2: ErrKeyNotExist, -7: ErrMapFull, -17: ErrKeyExist}[result]
	switch {
	case result == 0:
		return nil
	case reason == nil:
		reason = fmt.Errorf("error %d: a map of this type cannot be changed so", -result)
	}
	return fmt.Errorf("map %s: %w", name, reason)
}
