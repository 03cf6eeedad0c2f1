package trapless

import (
	"errors"
	"fmt"
	"reflect"

	"github.com/cilium/ebpf"

	"trapless/internal/arena"
	"trapless/internal/object"
	"trapless/internal/session"
)

// Errors of maps, to compare with by errors.Is: those of package ebpf.
var (
	ErrKeyExist    = session.ErrKeyExist
	ErrKeyNotExist = session.ErrKeyNotExist
	ErrMapFull     = session.ErrMapFull
)

// Map is a map of a collection. Keys and values are what package ebpf takes: types
// of a fixed size as encoding/binary knows them, slices of bytes, and what
// marshals itself. Where each CPU has a value of its own in the kernel, here each
// slot has: as many as threads were seen at the same time, and two more. Such values
// are read into a slice.
type Map struct {
	*object.Map
	coll   *Collection
	number int
}

// String is the map's name and type.
func (m *Map) String() string { return fmt.Sprintf("%s (%v)", m.Name, m.Type) }

// perSlot reports whether each slot has values of its own.
func (m *Map) perSlot() bool { return !m.Spec.Shared() }

var errRing = errors.New("a ring is read by NewReader")

// entries reads the whole map.
func (m *Map) entries() ([]arena.Raw, error) {
	if m.Spec.IsRing() {
		return nil, fmt.Errorf("map %s: %w", m.Name, errRing)
	}
	all, err := m.coll.session.ReadMap(m.number)
	if err != nil {
		return nil, fmt.Errorf("map %s: %w", m.Name, err)
	}
	return all, nil
}

// Lookup reads the value of a key into what value points to. In a hash it looks at
// all keys, so read many by Iterate.
func (m *Map) Lookup(key, value any) error {
	k, err := m.MarshalKey(key)
	if err != nil {
		return err
	}
	if m.Spec.IsRing() {
		return fmt.Errorf("map %s: %w", m.Name, errRing)
	}
	r, err := m.coll.session.LookupKey(m.number, k)
	if err != nil {
		return fmt.Errorf("map %s: %w", m.Name, err)
	}
	return m.decode(r.Values, value)
}

func (m *Map) decode(values [][]byte, out any) error {
	if !m.perSlot() {
		return object.Unmarshal(values[0], out)
	}
	to := reflect.ValueOf(out)
	if to.Kind() != reflect.Pointer || to.Elem().Kind() != reflect.Slice {
		return fmt.Errorf("map %s: each CPU has a value of its own: read them into a slice, not into %T", m.Name, out)
	}
	list := reflect.MakeSlice(to.Elem().Type(), len(values), len(values))
	for i, v := range values {
		if err := object.Unmarshal(v, list.Index(i).Addr().Interface()); err != nil {
			return fmt.Errorf("map %s: %w", m.Name, err)
		}
	}
	to.Elem().Set(list)
	return nil
}

// UpdateFlags are the flags of Update, as in package ebpf.
type UpdateFlags uint64

// The flags.
const (
	UpdateAny     UpdateFlags = 0
	UpdateNoExist UpdateFlags = 1
	UpdateExist   UpdateFlags = 2
)

// Put sets the value of a key.
func (m *Map) Put(key, value any) error { return m.Update(key, value, UpdateAny) }

// Update sets the value of a key. Programs see it as if another program had done
// so.
func (m *Map) Update(key, value any, flags UpdateFlags) error {
	if m.Type == ebpf.ProgramArray {
		return fmt.Errorf("map %s: the programs that tail calls lead to are set by the map's MapSpec.Contents, by their names, before the collection is made", m.Name)
	}
	if m.perSlot() {
		return fmt.Errorf("map %s: only programs can set values of which each thread has its own", m.Name)
	}
	if m.ReadOnly() {
		return fmt.Errorf("map %s: constants are set through CollectionSpec.Variables, before the collection is made", m.Name)
	}
	k, err := m.MarshalKey(key)
	if err != nil {
		return err
	}
	v, err := m.MarshalValue(value)
	if err != nil {
		return err
	}
	return m.coll.session.UpdateMap(m.number, k, v, uint64(flags))
}

// Delete removes a key.
func (m *Map) Delete(key any) error {
	if m.perSlot() {
		return fmt.Errorf("map %s: only programs can remove keys of which each thread has its own value", m.Name)
	}
	k, err := m.MarshalKey(key)
	if err != nil {
		return err
	}
	return m.coll.session.DeleteKey(m.number, k)
}

// MapIterator goes through the entries that a map had when Iterate was called.
type MapIterator struct {
	m   *Map
	all []arena.Raw
	err error
}

// Iterate reads the map.
func (m *Map) Iterate() *MapIterator {
	all, err := m.entries()
	return &MapIterator{m, all, err}
}

// Next reads the next entry into what key and value point to. It reports false after
// the last one, or after an error.
func (it *MapIterator) Next(key, value any) bool {
	if it.err != nil || len(it.all) == 0 {
		return false
	}
	e := it.all[0]
	it.all = it.all[1:]
	it.err = errors.Join(object.Unmarshal(e.Key, key), it.m.decode(e.Values, value))
	return it.err == nil
}

// Err is what ended the iteration, if not the last entry.
func (it *MapIterator) Err() error { return it.err }
