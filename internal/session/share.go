package session

import (
	"encoding/binary"
	"slices"

	"trapless/internal/abi"
	"trapless/internal/arena"
	"trapless/internal/bpf"
	"trapless/internal/lang"
)

// Entries that were assigned are carried between the arena of the session and those of
// its members. For each member it is remembered what both had when they were compared
// last; what a member has otherwise since then is new. Where programs add to the entries
// of a map ('+=', '++'), what was added is carried, so that nothing is lost.

// known is what a map of a member held when it was looked last, by key.
type known map[string][]uint64

// pull brings what members have assigned or deleted since the last time.
func (s *Session) pull() {
	for i := range s.config.Script.Maps {
		if !s.shares(i) {
			continue
		}
		for _, m := range s.members {
			s.pullFrom(m, i)
		}
	}
	s.push()
}

// shares reports whether all members are to see the entries of a map. What threads
// keep for themselves stays with them.
func (s *Session) shares(i int) bool {
	m := &s.config.Script.Maps[i]
	return m.Agg == lang.Plain && m.Spec.Kind != abi.PerThread
}

func (s *Session) pullFrom(m *Session, i int) {
	before, now := m.known[i], known{}
	for _, e := range s.entriesOf(m, i) {
		key := keyOf(&e)
		now[key] = e.Value
		if slices.Equal(before[key], e.Value) {
			continue
		}
		if s.added[i] {
			e.Value = s.sumOf(i, &e, before[key])
		}
		s.put(i, &e)
	}
	for key := range before {
		if now[key] == nil {
			s.machine.Delete(i, []byte(key))
		}
	}
	m.known[i] = now
}

// sumOf is the session's own entry and what a member has added to its own.
func (s *Session) sumOf(i int, e *arena.Entry, before []uint64) []uint64 {
	sum := slices.Clone(e.Value)
	last := len(sum) - 1
	if before != nil {
		sum[last] -= before[last]
	}
	for _, own := range s.arena.Entries(i) {
		if slices.Equal(own.Key, e.Key) {
			sum[last] += own.Value[last]
		}
	}
	return sum
}

// addedMaps are the maps of numbers that a program in a process adds to.
func (s *Session) addedMaps() []bool {
	added := make([]bool, len(s.config.Script.Maps))
	for k, v := range s.programs {
		if !needsProcess(s.config.Script.Probes[k]) {
			continue
		}
		last := -1
		for _, in := range v.Code().Insns {
			switch {
			case in.Kind == bpf.LoadRef || in.Kind == bpf.LoadValue:
				last = int(in.Imm)
			case in.Kind == bpf.AtomicRMW && last >= 0 && last < len(added):
				m := &s.config.Script.Maps[last]
				added[last] = added[last] || m.Agg == lang.Plain && m.Type.Kind == lang.Int
			}
		}
	}
	return added
}

// push brings what the session's own arena holds to the members.
func (s *Session) push() {
	for i := range s.config.Script.Maps {
		if !s.shares(i) {
			continue
		}
		own := s.arena.Entries(i)
		if namesIn(&s.config.Script.Maps[i]) {
			continue // numbers of stacks mean nothing elsewhere
		}
		for _, m := range s.members {
			m.take(i, own)
		}
	}
}

// take makes a member's map hold the entries.
func (s *Session) take(i int, entries []arena.Entry) {
	have, now := s.known[i], known{}
	for _, e := range entries {
		key := keyOf(&e)
		now[key] = e.Value
		switch {
		case slices.Equal(have[key], e.Value):
		case s.parent.added[i]:
			s.addTo(i, &e, have[key])
		default:
			s.put(i, &e)
		}
	}
	for key := range have {
		if now[key] == nil {
			s.machine.Delete(i, []byte(key))
		}
	}
	s.known[i] = now
}

// addTo adds to an entry what the session's own has more than what was known: a thread
// may add to it at the same time.
func (s *Session) addTo(i int, e *arena.Entry, before []uint64) {
	last := len(e.Value) - 1
	for w, v := range e.Value {
		if before != nil {
			v -= before[w]
		}
		if w == last || before == nil { // the others tell whether there is a value
			s.machine.Add(i, s.keyBytes(i, e), w, v)
		}
	}
}

// keyBytes is an entry's key as the map has it.
func (s *Session) keyBytes(i int, e *arena.Entry) []byte {
	spec := &s.config.Script.Maps[i].Spec
	if len(s.config.Script.Maps[i].Keys) == 0 {
		return make([]byte, spec.KeySize)
	}
	key := []byte(keyOf(e))
	return key[:min(len(key), spec.KeySize)]
}

// put writes an entry into the session's own arena.
func (s *Session) put(i int, e *arena.Entry) {
	var value []byte
	for _, w := range e.Value {
		value = binary.LittleEndian.AppendUint64(value, w)
	}
	size := s.config.Script.Maps[i].Spec.ValueSize
	s.machine.Update(i, s.keyBytes(i, e), value[:min(len(value), size)])
}
