package image

import (
	"cmp"
	"encoding/binary"
	"slices"

	"trapless/internal/abi"
)

// UnwindRow says from which address on a rule holds: up to the next row.
type UnwindRow struct {
	Start VAddr
	Rule  abi.UnwindRule
}

// maxUnwindRows bounds what one file may bring.
const maxUnwindRows = 1 << 24

// UnwindRows reads the call frame information of .eh_frame (DWARF 5, 6.4; LSB Core, "Exception Frames"), sorted
// by address. Where code has none, the rule is UnwindFrame. An entry that makes no sense is passed over.
func (f *File) UnwindRows() ([]UnwindRow, error) {
	table, at, err := f.unwindTable()
	if err != nil || len(table) == 0 {
		return nil, err
	}
	t := unwindTable{data: table, at: at, cieAt: -1}
	c := callFrames{table: &t, cieAt: -1}
	type piece struct {
		Range
		rows []UnwindRow
	}
	var pieces []piece
	total := 0
	for t.pos < len(t.data) {
		r, ok := t.next()
		if !ok || r.End <= r.Start || f.executable(r.Start) == nil && f.executable(r.Start+1) == nil {
			continue
		}
		rows := c.rows(r)
		if total += len(rows) + 1; total > maxUnwindRows {
			return nil, malformed("more than %d unwind rules", maxUnwindRows)
		}
		pieces = append(pieces, piece{r, rows})
	}
	slices.SortStableFunc(pieces, func(a, b piece) int { return cmp.Compare(a.Start, b.Start) })
	out := make([]UnwindRow, 0, total)
	for i, p := range pieces {
		if i > 0 && p.Start < pieces[i-1].End && p.Start == pieces[i-1].Start {
			continue // the first of two entries for the same code
		}
		end := p.End
		if i+1 < len(pieces) {
			end = min(end, pieces[i+1].Start)
		}
		for _, row := range p.rows {
			if row.Start < end || row.Start == p.Start {
				out = appendRow(out, row)
			}
		}
		if i+1 == len(pieces) || p.End < pieces[i+1].Start {
			out = appendRow(out, UnwindRow{p.End, abi.NewUnwindRule(abi.UnwindFrame, 0)})
		}
	}
	return out, nil
}

// appendRow leaves out a row that says what the one before it says, and replaces one of the same address.
func appendRow(rows []UnwindRow, row UnwindRow) []UnwindRow {
	if n := len(rows); n > 0 {
		if rows[n-1].Start == row.Start {
			rows = rows[:n-1]
		}
	}
	if n := len(rows); n > 0 && rows[n-1].Rule == row.Rule {
		return rows
	}
	return append(rows, row)
}

// callFrames runs the instructions of entries.
type callFrames struct {
	table *unwindTable
	cieAt int
	cie   frameCIE
}

// frameCIE is what a CIE says besides encodings.
type frameCIE struct {
	code, data int64 // factors
	initial    []byte
	ok         bool
}

// Numbers of registers (System V ABI for x86-64, figure 3.36).
const (
	dwarfRBP = 6
	dwarfRSP = 7
	dwarfRA  = 16
)

// rows are those of the entry read last, whose code is r.
func (c *callFrames) rows(r Range) []UnwindRow {
	t := c.table
	instructions, ok := t.instructions()
	if t.cieAt != c.cieAt {
		c.cieAt, c.cie = t.cieAt, parseFrameCIE(t.data, t.cieAt)
	}
	if !ok || !c.cie.ok {
		return []UnwindRow{{r.Start, abi.NewUnwindRule(abi.UnwindRefused, 0)}}
	}
	m := frameMachine{cie: &c.cie, loc: r.Start, end: r.End, signal: t.cie.signal}
	m.state.ra.off = -8
	m.run(c.cie.initial)
	m.initial, m.out = m.state, nil
	m.loc = r.Start
	m.run(instructions)
	m.flush()
	return m.out
}

// instructions are those of the FDE read last.
func (t *unwindTable) instructions() ([]byte, bool) {
	c := cursor{t.data[t.augmented:t.end], true}
	if t.cie.data {
		size := c.uleb()
		if !c.ok || size > uint64(len(c.rest)) {
			return nil, false
		}
		c.rest = c.rest[size:]
	}
	return c.rest, true
}

// parseFrameCIE reads a CIE that cieEncodings understands.
func parseFrameCIE(data []byte, at int) frameCIE {
	if at < 0 || len(data)-at < 9 {
		return frameCIE{}
	}
	length := uint64(binary.LittleEndian.Uint32(data[at:]))
	if length < 5 || length > uint64(len(data)-at-4) {
		return frameCIE{}
	}
	c := cursor{data[at+9 : at+4+int(length)], true}
	version := data[at+8]
	augmentation := c.untilZero()
	e := frameCIE{code: int64(c.uleb()), data: c.sleb()}
	if version == 1 {
		e.ok = c.byte() == dwarfRA
	} else {
		e.ok = c.uleb() == dwarfRA
	}
	if len(augmentation) > 0 && augmentation[0] == 'z' {
		size := c.uleb()
		if size > uint64(len(c.rest)) {
			return frameCIE{}
		}
		c.rest = c.rest[size:]
	}
	e.initial, e.ok = c.rest, e.ok && c.ok
	return e
}

// sleb reads a signed number (DWARF 5, 7.6).
func (c *cursor) sleb() int64 {
	var v int64
	for shift := 0; ; shift += 7 {
		b := c.byte()
		if shift < 64 {
			v |= int64(b&0x7f) << shift
		}
		if b&0x80 == 0 {
			if shift += 7; shift < 64 && b&0x40 != 0 {
				v |= -1 << shift
			}
			return v
		}
	}
}
