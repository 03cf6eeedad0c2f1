package session

import (
	"fmt"
	"slices"
	"strings"

	"trapless/internal/arena"
	"trapless/internal/lang"
)

// A stack's number means something in one arena alone, and an address in one process. So
// when the keys of members are brought together, stacks get numbers of the session's own,
// by their frames' names, and the names of symbols are kept by their addresses.

// stackBook names stacks and symbols of all members.
type stackBook struct {
	number map[string]uint64 // of a stack, by what it looks like
	frames map[uint64][]lang.Value
	symbol map[uint64]string // by address
}

func newStackBook() *stackBook {
	return &stackBook{map[string]uint64{}, map[uint64][]lang.Value{}, map[uint64]string{}}
}

// namesIn reports whether there are stacks or symbols in the map.
func namesIn(m *lang.Map) bool {
	return m.Agg == lang.Plain && m.Type.Kind == lang.Stack || slices.ContainsFunc(m.Keys, func(t lang.Type) bool { return t.Kind == lang.Stack || t.Kind == lang.Symbol })
}

// entriesOf are a member's entries, with keys that mean the same in all members.
func (s *Session) entriesOf(m *Session, i int) []arena.Entry {
	entries := m.arena.Entries(i)
	info := &s.config.Script.Maps[i]
	if !namesIn(info) {
		return entries
	}
	for k := range entries {
		entries[k].Key = s.book.key(m, info, entries[k].Key)
		if info.Agg == lang.Plain && info.Type.Kind == lang.Stack && len(entries[k].Value) > 0 {
			last := len(entries[k].Value) - 1
			entries[k].Value = slices.Clone(entries[k].Value)
			entries[k].Value[last] = s.book.note(m, lang.Value{Type: info.Type, Int: entries[k].Value[last]})
		}
	}
	return entries
}

// key is a member's key with numbers that mean the same in all members.
func (b *stackBook) key(m *Session, info *lang.Map, key []uint64) []uint64 {
	at := 0
	key = slices.Clone(key)
	for _, t := range info.Keys {
		if at < len(key) && (t.Kind == lang.Stack || t.Kind == lang.Symbol) {
			key[at] = b.note(m, lang.Value{Type: t, Int: key[at]})
		}
		at += t.Words()
	}
	return key
}

// note keeps what a member knows of a stack or a symbol, and returns the session's number of it.
func (b *stackBook) note(m *Session, v lang.Value) uint64 {
	m.lookUp(&v)
	if v.Type.Kind == lang.Symbol {
		b.symbol[v.Int] = v.Str
		return v.Int
	}
	var text strings.Builder
	for _, e := range v.Elems {
		fmt.Fprintf(&text, "%s\n", e.Str)
	}
	n, ok := b.number[text.String()]
	if !ok {
		n = uint64(len(b.number) + 1)
		b.number[text.String()], b.frames[n] = n, v.Elems
	}
	return n
}

// name is Session.lookUp for the session's own numbers.
func (b *stackBook) name(v *lang.Value) {
	switch v.Type.Kind {
	case lang.Symbol:
		if v.Str == "" {
			v.Str = b.symbol[v.Int]
		}
	case lang.Stack:
		if v.Elems == nil {
			v.Elems = b.frames[v.Int]
		}
	default:
		for i := range v.Elems {
			b.name(&v.Elems[i])
		}
	}
}
