package proc

import (
	"fmt"
	"strconv"
	"strings"

	"trapless/internal/abi"
)

// Perm is the protection of a mapping.
type Perm uint8

// The bits of a Perm.
const (
	Read Perm = 1 << iota
	Write
	Exec
	Shared // else private
)

// String is the protection as /proc/PID/maps prints it.
func (p Perm) String() string {
	b := []byte("---p")
	for i, c := range "rwx" {
		if p&(1<<i) != 0 {
			b[i] = byte(c)
		}
	}
	if p&Shared != 0 {
		b[3] = 's'
	}
	return string(b)
}

// Mapping is a line of /proc/PID/maps.
type Mapping struct {
	abi.Range
	Perm    Perm
	Offset  uint64 // of the first byte in the file
	Major   uint32 // device of the file
	Minor   uint32
	Inode   uint64 // 0 when there is no file
	Path    string // of the file in the target's mount namespace; "[heap]" and the like; "" for anonymous memory
	Deleted bool   // the file has no name any more
}

// File reports whether the mapping has a file behind it.
func (m *Mapping) File() bool { return m.Inode != 0 }

// SameFile reports whether two mappings have the same file behind them.
func (m *Mapping) SameFile(o *Mapping) bool {
	return m.Inode != 0 && m.Inode == o.Inode && m.Major == o.Major && m.Minor == o.Minor
}

// Maps is the address space of a process in ascending order.
type Maps []Mapping

// Find is the mapping that holds an address, nil when it is unmapped.
func (ms Maps) Find(a abi.Addr) *Mapping {
	lo, hi := 0, len(ms)
	for lo < hi {
		mid := (lo + hi) / 2
		if ms[mid].End <= a {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo < len(ms) && ms[lo].Contains(a) {
		return &ms[lo]
	}
	return nil
}

// Free reports whether nothing is mapped in a range.
func (ms Maps) Free(r abi.Range) bool {
	for i := range ms {
		if ms[i].Overlaps(r) {
			return false
		}
	}
	return true
}

// Gaps are the unmapped ranges between lo and hi, in ascending order.
func (ms Maps) Gaps(lo, hi abi.Addr) []abi.Range {
	var gaps []abi.Range
	at := lo
	for i := range ms {
		m := &ms[i]
		if m.Start >= hi {
			break
		}
		if m.Start > at {
			gaps = append(gaps, abi.Range{Start: at, End: m.Start})
		}
		at = max(at, m.End)
	}
	if at < hi {
		gaps = append(gaps, abi.Range{Start: at, End: hi})
	}
	return gaps
}

// Bytes is the size of all mappings together, which RLIMIT_AS limits.
func (ms Maps) Bytes() (n uint64) {
	for i := range ms {
		n += ms[i].Len()
	}
	return n
}

// ReadMaps reads the address space of a process through a thread that lives.
func ReadMaps(pid int) (Maps, error) {
	b, err := readLive(pid, "maps")
	if err != nil {
		return nil, err
	}
	return ParseMaps(string(b))
}

// ParseMaps parses the text of a maps file.
func ParseMaps(text string) (Maps, error) {
	ms := make(Maps, 0, strings.Count(text, "\n"))
	for line := range strings.Lines(text) {
		m, err := parseMapping(strings.TrimSuffix(line, "\n"))
		if err != nil {
			return nil, fmt.Errorf("maps line %q: %w", line, err)
		}
		ms = append(ms, m)
	}
	return ms, nil
}

func parseMapping(line string) (m Mapping, err error) {
	var f [5]string
	rest := line
	for i := range f {
		f[i], rest, _ = strings.Cut(strings.TrimLeft(rest, " "), " ")
	}
	lo, hi, _ := strings.Cut(f[0], "-")
	major, minor, _ := strings.Cut(f[3], ":")
	num := func(s string, base, bits int) uint64 {
		n, e := strconv.ParseUint(s, base, bits)
		if e != nil && err == nil {
			err = e
		}
		return n
	}
	m.Start, m.End = abi.Addr(num(lo, 16, 64)), abi.Addr(num(hi, 16, 64))
	m.Perm = parsePerm(f[1])
	m.Offset = num(f[2], 16, 64)
	m.Major, m.Minor = uint32(num(major, 16, 32)), uint32(num(minor, 16, 32))
	m.Inode = num(f[4], 10, 64)
	m.Path = strings.TrimLeft(rest, " ")
	if m.File() {
		m.Path, m.Deleted = strings.CutSuffix(m.Path, " (deleted)")
		m.Path = strings.ReplaceAll(m.Path, `\012`, "\n")
	}
	if err == nil && m.Start >= m.End {
		err = fmt.Errorf("it does not ascend")
	}
	return m, err
}

func parsePerm(s string) (p Perm) {
	for _, c := range s {
		switch c {
		case 'r':
			p |= Read
		case 'w':
			p |= Write
		case 'x':
			p |= Exec
		case 's':
			p |= Shared
		}
	}
	return p
}
