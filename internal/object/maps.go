package object

import (
	"bytes"
	"encoding"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"trapless/internal/abi"
)

// Map is a map of the object.
type Map struct {
	Name     string
	Spec     abi.MapSpec
	Type     ebpf.MapType
	Key      btf.Type // may be nil
	Value    btf.Type // may be nil; of a ring that of its records
	Contents []Entry  // at the start
	Size     uint64   // of a ring, in bytes; 0 if it does not say
}

// Entry is a key of a map, and its value.
type Entry struct{ Key, Value []byte }

// Section reports whether the map holds the variables of an ELF section.
func (m *Map) Section() bool { return isData(m.Name) }

// Ring reports whether the map is a ring.
func (m *Map) Ring() bool { return m.Type == ebpf.RingBuf || m.Type == ebpf.PerfEventArray }

// ReadOnly reports whether the map holds constants.
func (m *Map) ReadOnly() bool { return strings.HasPrefix(m.Name, ".rodata") }

// isData reports whether a map holds a section of global variables.
func isData(name string) bool {
	return name == ".bss" || strings.HasPrefix(name, ".data") || strings.HasPrefix(name, ".rodata")
}

// kinds are the kernel's types of maps, as the engine has them.
var kinds = map[ebpf.MapType]abi.MapKind{
	ebpf.Hash: abi.Hash, ebpf.Array: abi.Array, ebpf.PerCPUHash: abi.PerSlotHash, ebpf.PerCPUArray: abi.PerSlotArray,
	ebpf.LRUHash: abi.LRUHash, ebpf.StackTrace: abi.StackTrace, ebpf.RingBuf: abi.RingBuf, ebpf.PerfEventArray: abi.PerfEventArray,
}

// Flags of a map that change nothing here (include/uapi/linux/bpf.h).
const (
	flagNoPrealloc = 1 << 0
	flagReadOnly   = 1 << 3 // for the user
	flagWriteOnly  = 1 << 4 // for the user
	flagMmapable   = 1 << 10
	harmlessFlags  = flagNoPrealloc | flagReadOnly | flagWriteOnly | flagMmapable

	flagReadOnlyProg = 1 << 7 // for programs
)

// maps numbers the maps, and notes why the engine lacks some. Only a program that
// may come to use one of those is refused: it is often behind a constant that says
// that it is not wanted. Such a map is given the form of a ring, which takes no room.
func (l *loader) maps() error {
	for _, name := range slices.Sorted(maps.Keys(l.spec.Maps)) {
		m, err := l.convert(name, l.spec.Maps[name])
		if err == nil {
			_, err = abi.NewLayout(abi.Config{Threads: 1, Maps: []abi.MapSpec{m.Spec}})
		}
		l.numbers[name] = len(l.object.Maps)
		if spec := l.spec.Maps[name]; spec.Type == ebpf.ProgramArray {
			if l.arrays[l.numbers[name]], err = l.programArray(name, spec); err != nil {
				return err
			}
			m = &Map{Name: name, Type: spec.Type, Spec: abi.MapSpec{Name: name, Kind: abi.RingBuf}}
		}
		if err != nil {
			l.unusable[l.numbers[name]] = err
			m = &Map{Name: name, Type: l.spec.Maps[name].Type, Spec: abi.MapSpec{Name: name, Kind: abi.RingBuf}}
		}
		l.object.Maps = append(l.object.Maps, *m)
	}
	return nil
}

func (l *loader) convert(name string, spec *ebpf.MapSpec) (*Map, error) {
	kind, ok := kinds[spec.Type]
	allowed := uint32(harmlessFlags)
	if isData(name) {
		allowed |= flagReadOnlyProg
	}
	switch {
	case !ok:
		return nil, fmt.Errorf("map %s: maps of type %v are not supported", name, spec.Type)
	case spec.InnerMap != nil:
		return nil, fmt.Errorf("map %s: maps of maps are not supported", name)
	case spec.Flags&^allowed != 0:
		return nil, fmt.Errorf("map %s: the flags %#x are not supported", name, spec.Flags&^allowed)
	case spec.Pinning != ebpf.PinNone:
		return nil, fmt.Errorf("map %s is to be pinned, but lies in the process's own memory, which no file stands for; leave pinning out", name)
	}
	m := &Map{Name: name, Type: spec.Type, Key: spec.Key, Value: spec.Value,
		Spec: abi.MapSpec{Name: name, Kind: kind, KeySize: int(spec.KeySize), ValueSize: int(spec.ValueSize), MaxEntries: int(spec.MaxEntries)}}
	if m.Spec.IsRing() {
		if m.Type == ebpf.RingBuf {
			m.Size = uint64(spec.MaxEntries)
		}
		return m, nil
	}
	return m, l.fill(m, spec)
}

// fill notes what a map holds at the start.
func (l *loader) fill(m *Map, spec *ebpf.MapSpec) error {
	for _, kv := range spec.Contents {
		key, err := marshal(kv.Key, m.Spec.KeySize)
		if err != nil {
			return fmt.Errorf("map %s: key: %w", m.Name, err)
		}
		value, err := marshal(kv.Value, m.Spec.ValueSize)
		if err != nil {
			return fmt.Errorf("map %s: value: %w", m.Name, err)
		}
		m.Contents = append(m.Contents, Entry{key, value})
	}
	if m.Section() && len(m.Contents) == 0 {
		m.Contents = []Entry{{make([]byte, m.Spec.KeySize), make([]byte, m.Spec.ValueSize)}}
	}
	if m.Section() {
		l.variables(m)
	}
	return nil
}

// variables puts into a section what was set through CollectionSpec.Variables, or
// through Options.
func (l *loader) variables(m *Map) {
	data := m.Contents[0].Value
	for name, v := range l.spec.Variables {
		value := v.Value
		if set, ok := l.set[name]; ok {
			value = set
		}
		if v.SectionName == m.Name && int(v.Offset)+len(value) <= len(data) {
			copy(data[v.Offset:], value)
		}
	}
}

// marshal makes the bytes of a key or a value, which package ebpf lets be of any
// type with a fixed size.
func marshal(v any, size int) ([]byte, error) {
	var b []byte
	var err error
	switch v := v.(type) {
	case []byte:
		b = bytes.Clone(v)
	case string:
		b = []byte(v)
	case encoding.BinaryMarshaler:
		b, err = v.MarshalBinary()
	default:
		b, err = binary.Append(nil, binary.LittleEndian, v)
	}
	if err == nil && len(b) != size {
		err = fmt.Errorf("%d bytes instead of %d", len(b), size)
	}
	return b, err
}

// Marshal makes the bytes of a key of the map.
func (m *Map) MarshalKey(key any) ([]byte, error) { return m.marshal("key", key, m.Spec.KeySize) }

// MarshalValue makes the bytes of a value of the map.
func (m *Map) MarshalValue(value any) ([]byte, error) {
	return m.marshal("value", value, m.Spec.ValueSize)
}

func (m *Map) marshal(what string, v any, size int) ([]byte, error) {
	b, err := marshal(v, size)
	if err != nil {
		return nil, fmt.Errorf("map %s: %s: %w", m.Name, what, err)
	}
	return b, nil
}

// Unmarshal reads the bytes of a key or a value into what out points to.
func Unmarshal(b []byte, out any) error {
	switch out := out.(type) {
	case *[]byte:
		*out = bytes.Clone(b)
		return nil
	case *string:
		*out = string(b)
		return nil
	case encoding.BinaryUnmarshaler:
		return out.UnmarshalBinary(b)
	}
	n, err := binary.Decode(b, binary.LittleEndian, out)
	if err == nil && n != len(b) {
		err = errors.New("the type is smaller")
	}
	if err != nil {
		return fmt.Errorf("%d bytes into %T: %w", len(b), out, err)
	}
	return nil
}
