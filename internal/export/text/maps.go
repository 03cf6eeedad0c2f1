package text

import (
	"cmp"
	"io"
	"slices"
	"strings"

	"trapless/internal/arena"
	"trapless/internal/lang"
)

// PrintMap writes a map: "@name: value", or "@name[key]: value" for each entry,
// the smallest value first, and the smallest key first where values are equal.
// A histogram or a time series follows on lines of its own, and an empty line after it.
//
// With top, only so many of the largest are written. Values are divided by div,
// which is 0 for the listing at the end of a session; a map without keys that
// has no value is left out there, and is 0 elsewhere.
func PrintMap(w io.Writer, m *lang.Map, entries []arena.Entry, top, div uint32) error {
	var b strings.Builder
	for _, e := range rows(m, entries, top, div) {
		b.WriteString(m.Name)
		if len(m.Keys) > 0 {
			b.WriteString("[" + strings.Join(e.key, ", ") + "]")
		}
		b.WriteString(":")
		if drawn(m) {
			b.WriteString("\n" + e.value.text() + "\n")
		} else {
			b.WriteString(" " + e.value.text() + "\n")
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// End writes what separates the output of a session from the listing of its
// maps.
func End(w io.Writer) error {
	_, err := io.WriteString(w, "\n\n")
	return err
}

// row is an entry as it is written.
type row struct {
	key   []string
	value value
}

// rows are the entries of a map in their order.
func rows(m *lang.Map, entries []arena.Entry, top, div uint32) []row {
	entries = slices.Clone(entries)
	slices.SortFunc(entries, func(a, b arena.Entry) int { return compare(m, &a, &b) })
	if top > 0 && len(entries) > int(top) {
		entries = entries[len(entries)-int(top):]
	}
	if len(m.Keys) == 0 && len(entries) == 0 && div != 0 && !drawn(m) {
		entries = []arena.Entry{{}}
	}
	out := make([]row, len(entries))
	for i := range entries {
		out[i] = row{keys(m, &entries[i]), valueOf(m, &entries[i], div)}
	}
	return out
}

func keys(m *lang.Map, e *arena.Entry) []string {
	var out []string
	for _, v := range m.KeyParts(e.Key) {
		if v.Type.Kind == lang.Stack {
			out = append(out, stack(v, stackKeyIndent))
			continue
		}
		out = append(out, Value(v))
	}
	if len(m.Keys) == 1 && m.Keys[0].Kind == lang.Tuple {
		out[0] = strings.TrimSuffix(strings.TrimPrefix(out[0], "("), ")")
	}
	return out
}

func compare(m *lang.Map, a, b *arena.Entry) int {
	if c := compareValues(m, a, b); c != 0 {
		return c
	}
	return compareParts(m.KeyParts(a.Key), m.KeyParts(b.Key))
}

// compareParts compares keys, or values of which they consist, by their parts from the first on.
func compareParts(a, b []lang.Value) int {
	for i, v := range a {
		c := compareAs(v.Int, b[i].Int, v.Type.Signed)
		if c = cmp.Or(c, cmp.Compare(v.Str, b[i].Str), compareParts(v.Elems, b[i].Elems)); c != 0 {
			return c
		}
	}
	return 0
}

func compareAs(a, b uint64, signed bool) int {
	if signed {
		return cmp.Compare(int64(a), int64(b))
	}
	return cmp.Compare(a, b)
}
