package text

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"io"
	"strings"

	"trapless/internal/arena"
	"trapless/internal/object"
)

// Object writes what the programs of a BPF object file leave, as text: records of
// rings and lines of trace_printk as they come, and maps at the end, a line for
// each entry or variable. Values are written as C writes them, by their types where
// the file tells those. Elements of arrays that are zero are left out, and values of
// which each thread has its own are added up where they are numbers.
type Object struct {
	W    io.Writer
	Maps []object.Map
}

// Record writes a record of a ring.
func (o *Object) Record(r arena.Record) error {
	if r.Map < 0 || r.Map >= len(o.Maps) {
		return nil
	}
	m := &o.Maps[r.Map]
	_, err := fmt.Fprintf(o.W, "%s: %v\n", m.Name, record(m, r.Payload))
	return err
}

// record is what a record means.
func record(m *object.Map, payload []byte) object.Value {
	if m.Value == nil {
		return object.Value{Text: hex.EncodeToString(payload)}
	}
	return object.Decode(m.Value, payload)
}

// Print writes a text of trace_printk.
func (o *Object) Print(text string) error {
	_, err := fmt.Fprintln(o.W, strings.TrimSuffix(text, "\n"))
	return err
}

// End writes the maps.
func (o *Object) End(read func(n int) []arena.Raw) error {
	var b strings.Builder
	for i := range o.Maps {
		m := &o.Maps[i]
		if m.Spec.IsRing() || m.ReadOnly() {
			continue
		}
		var lines []string
		for _, e := range entries(m, read(i)) {
			lines = append(lines, objectLines(m, e)...)
		}
		if len(lines) > 0 {
			fmt.Fprintf(&b, "\n%s\n", strings.Join(lines, "\n"))
		}
	}
	_, err := io.WriteString(o.W, b.String())
	return err
}

// objectEntry is an entry as it is written: values is one unless threads have
// their own that cannot be added up.
type objectEntry struct {
	key    object.Value
	values []object.Value
}

// entries are those of a map that are written.
func entries(m *object.Map, all []arena.Raw) []objectEntry {
	var out []objectEntry
	for _, r := range all {
		values := r.Values
		if sum, ok := object.Sum(m.Value, r.Values); ok {
			values = [][]byte{sum}
		}
		e := objectEntry{key: object.Decode(m.Key, r.Key)}
		for _, v := range values {
			if len(bytes.Trim(v, "\x00")) > 0 || m.Spec.IsHash() && len(values) == 1 || m.Section() {
				e.values = append(e.values, object.Decode(m.Value, v))
			}
		}
		if len(e.values) > 0 {
			out = append(out, e)
		}
	}
	return out
}

// objectLines are the lines for an entry.
func objectLines(m *object.Map, e objectEntry) []string {
	var lines []string
	for _, v := range e.values {
		switch {
		case m.Section() && v.Many:
			for _, f := range v.Fields {
				lines = append(lines, f.Name+": "+f.Value.String())
			}
		case m.Spec.MaxEntries == 1 && !m.Spec.IsHash():
			lines = append(lines, m.Name+": "+v.String())
		default:
			lines = append(lines, m.Name+"["+e.key.String()+"]: "+v.String())
		}
	}
	return lines
}

// ObjectJSON is Object with one JSON object a line:
//
//	{"type": "record", "map": "events", "data": {"pid": 1}}
//	{"type": "print", "data": "text"}
//	{"type": "map", "map": "counts", "entries": [{"key": 1, "values": [5]}]}
//
// Bytes without a type are written in hexadecimal.
type ObjectJSON struct {
	W    io.Writer
	Maps []object.Map
}

// Record writes a record of a ring.
func (o *ObjectJSON) Record(r arena.Record) error {
	if r.Map < 0 || r.Map >= len(o.Maps) {
		return nil
	}
	m := &o.Maps[r.Map]
	_, err := fmt.Fprintf(o.W, `{"type": "record", "map": %s, "data": %s}`+"\n", jsonString(m.Name), objectJSON(record(m, r.Payload)))
	return err
}

// Print writes a text of trace_printk.
func (o *ObjectJSON) Print(text string) error {
	_, err := fmt.Fprintf(o.W, `{"type": "print", "data": %s}`+"\n", jsonString(text))
	return err
}

// End writes the maps.
func (o *ObjectJSON) End(read func(n int) []arena.Raw) error {
	for i := range o.Maps {
		m := &o.Maps[i]
		if m.Spec.IsRing() || m.ReadOnly() {
			continue
		}
		var all []string
		for _, e := range entries(m, read(i)) {
			var values []string
			for _, v := range e.values {
				values = append(values, objectJSON(v))
			}
			all = append(all, fmt.Sprintf(`{"key": %s, "values": [%s]}`, objectJSON(e.key), strings.Join(values, ", ")))
		}
		if _, err := fmt.Fprintf(o.W, `{"type": "map", "map": %s, "entries": [%s]}`+"\n", jsonString(m.Name), strings.Join(all, ", ")); err != nil {
			return err
		}
	}
	return nil
}

func objectJSON(v object.Value) string {
	switch {
	case v.Number:
		return jsonNumber(v.Text)
	case !v.Many:
		return jsonString(v.Text)
	}
	var parts []string
	for _, f := range v.Fields {
		if v.Array {
			parts = append(parts, objectJSON(f.Value))
		} else {
			parts = append(parts, jsonString(f.Name)+": "+objectJSON(f.Value))
		}
	}
	if v.Array {
		return "[" + strings.Join(parts, ", ") + "]"
	}
	return "{" + strings.Join(parts, ", ") + "}"
}
