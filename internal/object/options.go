package object

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

// Options are what is said beside the object file.
type Options struct {
	// Attach says where programs are to be put, by their names, instead of where
	// their sections say: attach points as in a script, "libc:malloc" for
	// instance, or with a kind, "uretprobe:libc:malloc".
	Attach map[string][]string
	// Set gives global variables other values, by their names: numbers as in Go, and
	// texts for arrays of char.
	Set map[string]string
	// Records says of what structure of the object's the records of a ring are.
	Records map[string]string
}

// overrides makes the bytes of the variables that Options.Set names.
func (l *loader) overrides() error {
	for _, name := range slices.Sorted(maps.Keys(l.options.Set)) {
		v := l.spec.Variables[name]
		if v == nil {
			return fmt.Errorf("it has no variable %s; it has %s", name, list(maps.Keys(l.spec.Variables)))
		}
		b, err := parseVariable(v, l.options.Set[name])
		if err != nil {
			return fmt.Errorf("variable %s: %w", name, err)
		}
		l.set[name] = b
	}
	return nil
}

func parseVariable(v *ebpf.VariableSpec, text string) ([]byte, error) {
	size := int(v.Size())
	var t btf.Type
	if v.Type != nil {
		t = btf.UnderlyingType(v.Type.Type)
	}
	if a, ok := t.(*btf.Array); ok && isChar(a.Type) {
		if len(text) >= size {
			return nil, fmt.Errorf("%q has more than %d bytes", text, size-1)
		}
		return append([]byte(text), make([]byte, size-len(text))...), nil
	}
	switch t.(type) {
	case nil, *btf.Int, *btf.Enum:
	default:
		return nil, fmt.Errorf("only numbers and texts can be set, and it is %v", t)
	}
	return parseNumber(text, size)
}

// parseNumber reads a number that has so many bytes, with or without a sign.
func parseNumber(text string, size int) ([]byte, error) {
	n, err := strconv.ParseUint(text, 0, 64)
	if err != nil {
		signed, serr := strconv.ParseInt(text, 0, 64)
		switch {
		case text == "true":
			n = 1
		case text == "false":
		case serr != nil:
			return nil, fmt.Errorf("%q is no number", text)
		case size < 8 && signed < math.MinInt64>>(64-8*size):
			return nil, fmt.Errorf("%s does not fit into %d bytes", text, size)
		default:
			n = uint64(signed)
		}
	} else if size < 8 && n>>(8*size) != 0 {
		return nil, fmt.Errorf("%s does not fit into %d bytes", text, size)
	}
	if size > 8 {
		return nil, fmt.Errorf("it has %d bytes, which is no number", size)
	}
	return binary.LittleEndian.AppendUint64(nil, n)[:size], nil
}

// recordTypes gives rings the structures that Options.Records names.
func (l *loader) recordTypes() error {
	for _, name := range slices.Sorted(maps.Keys(l.options.Records)) {
		n, ok := l.numbers[name]
		if !ok || !l.object.Maps[n].Ring() {
			return fmt.Errorf("it has no ring %s", name)
		}
		var t *btf.Struct
		if l.spec.Types == nil {
			return fmt.Errorf("it has no types (BTF)")
		}
		if err := l.spec.Types.TypeByName(l.options.Records[name], &t); err != nil {
			return fmt.Errorf("records of %s: struct %s: %w", name, l.options.Records[name], err)
		}
		l.object.Maps[n].Value = t
	}
	return nil
}
