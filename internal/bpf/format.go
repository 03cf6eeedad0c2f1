package bpf

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"

	"github.com/cilium/ebpf/asm"
)

// Formats of snprintf are those of bpf_snprintf: what bpf_bprintf_prepare
// (kernel/trace/bpf_trace.c) lets pass and bstr_printf (lib/vsprintf.c) prints, but
// for the kernel's own symbols. Nothing in a process is hidden from its probes, so %p
// and %pK are %px.

// Limits of a format.
const (
	maxWidth        = 999
	MaxFormatString = 511 // bytes of a string that are printed (MAX_BPRINTF_BIN_ARGS)
)

// piece is a part of a format: text, or a conversion of one argument.
type piece struct {
	text  string
	verb  byte // d, u, x, X, c, s, p, or of an address of the internet 4 or 6; 0 for text
	long  bool // 64 bits of an integer count, not 32
	plain bool // of an address of the internet: as %pi prints it
	flags string
	width int
}

func (p *piece) has(flag string) bool { return strings.Contains(p.flags, flag) }

// parseFormat takes a format apart.
func parseFormat(format string) (pieces []piece, err error) {
	for i := range len(format) {
		if c := format[i]; c >= 0x7f || c < ' ' && !isSpace(c) {
			return nil, fmt.Errorf("the byte %#x in a format can not be printed", c)
		}
	}
	for format != "" {
		text, rest, found := strings.Cut(format, "%")
		if text != "" {
			pieces = append(pieces, piece{text: text})
		}
		if !found {
			break
		}
		if strings.HasPrefix(rest, "%") {
			pieces, format = append(pieces, piece{text: "%"}), rest[1:]
			continue
		}
		p, size, err := parseConversion(rest)
		if err != nil {
			return nil, err
		}
		pieces, format = append(pieces, p), rest[size:]
	}
	return pieces, nil
}

func isSpace(c byte) bool { return c == ' ' || c >= '\t' && c <= '\r' }

// ends reports whether nothing that belongs to a conversion follows.
func ends(rest string) bool {
	return rest == "" || isSpace(rest[0]) || strings.IndexByte("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", rest[0]) >= 0
}

// parseConversion reads what follows a '%', and tells how long it is.
func parseConversion(s string) (p piece, size int, err error) {
	rest := strings.TrimLeft(s, "0+- ")
	p.flags = s[:len(s)-len(rest)]
	digits := rest[:len(rest)-len(strings.TrimLeft(rest, "0123456789"))]
	rest = rest[len(digits):]
	if digits != "" {
		if p.width, err = strconv.Atoi(digits); err != nil || p.width > maxWidth {
			return p, 0, fmt.Errorf("a field of %s characters in a format; the most is %d", digits, maxWidth)
		}
	}
	verb := rest
	if rest, err = p.parseVerb(rest); err != nil {
		return p, 0, err
	}
	if p.verb == 0 {
		return p, 0, fmt.Errorf("the conversion %%%.3s in a format", verb)
	}
	return p, len(s) - len(rest), nil
}

// parseVerb reads what follows the width, and returns what follows that.
func (p *piece) parseVerb(s string) (rest string, err error) {
	for n := range 2 {
		if strings.HasPrefix(s, "l") && (n == 0 || p.long) {
			p.long, s = true, s[1:]
		}
	}
	switch {
	case s == "":
	case strings.IndexByte("diuxX", s[0]) >= 0:
		p.verb = s[0]
		if s[0] == 'i' {
			p.verb = 'd'
		}
		return s[1:], nil
	case p.long:
	case s[0] == 'c':
		p.verb = 'c'
		return s[1:], nil
	case s[0] == 's' && ends(s[1:]):
		p.verb = 's'
		return s[1:], nil
	case s[0] == 'p':
		return p.parsePointer(s[1:])
	}
	return s, nil
}

// parsePointer reads what follows %p.
func (p *piece) parsePointer(s string) (rest string, err error) {
	switch {
	case ends(s):
		p.verb = 'p'
		return s, nil
	case s[0] == 'x' || s[0] == 'K':
		p.verb = 'p'
		return s[1:], nil
	case (s[0] == 'k' || s[0] == 'u') && len(s) > 1 && s[1] == 's' && ends(s[2:]):
		p.verb = 's'
		return s[2:], nil
	case (s[0] == 'i' || s[0] == 'I') && len(s) > 1 && (s[1] == '4' || s[1] == '6'):
		p.verb, p.plain = s[1], s[0] == 'i'
		return s[2:], nil
	case s[0] == 's' || s[0] == 'S' || s[0] == 'B':
		return s, fmt.Errorf("%%p%c in a format is a symbol of the kernel, of which a process has none", s[0])
	}
	return s, nil
}

// conversions counts the arguments that a format takes.
func conversions(pieces []piece) (n int) {
	for i := range pieces {
		if pieces[i].verb != 0 {
			n++
		}
	}
	return n
}

// sprint prints arguments by a format. read gives the memory at an address: so many
// bytes, or a string of at most so many, and false if it cannot be read.
func sprint(pieces []piece, args []uint64, read func(addr uint64, size int, text bool) ([]byte, bool)) []byte {
	var out []byte
	for i := range pieces {
		p := &pieces[i]
		if p.verb == 0 {
			out = append(out, p.text...)
			continue
		}
		out = p.append(out, args[0], read)
		args = args[1:]
	}
	return out
}

func (p *piece) append(out []byte, v uint64, read func(addr uint64, size int, text bool) ([]byte, bool)) []byte {
	switch p.verb {
	case 'c':
		return p.pad(out, "", string([]byte{byte(v)}), false)
	case 's':
		b, ok := read(v, MaxFormatString, true)
		if !ok {
			b = nil
		}
		return p.pad(out, "", string(b), false)
	case '4', '6':
		return append(out, p.internet(v, read)...)
	case 'p':
		q := *p
		if q.width == 0 {
			q.width, q.flags = 16, q.flags+"0"
		}
		return q.pad(out, "", strconv.FormatUint(v, 16), true)
	}
	return p.integer(out, v)
}

func (p *piece) integer(out []byte, v uint64) []byte {
	if p.verb == 'd' {
		if !p.long {
			v = uint64(int64(int32(v)))
		}
		sign := ""
		switch {
		case int64(v) < 0:
			v, sign = -v, "-"
		case p.has("+"):
			sign = "+"
		case p.has(" "):
			sign = " "
		}
		return p.pad(out, sign, strconv.FormatUint(v, 10), true)
	}
	if !p.long {
		v = uint64(uint32(v))
	}
	switch p.verb {
	case 'x':
		return p.pad(out, "", strconv.FormatUint(v, 16), true)
	case 'X':
		return p.pad(out, "", strings.ToUpper(strconv.FormatUint(v, 16)), true)
	}
	return p.pad(out, "", strconv.FormatUint(v, 10), true)
}

// pad fills a field.
func (p *piece) pad(out []byte, sign, body string, number bool) []byte {
	fill := max(0, p.width-len(sign)-len(body))
	spaces := strings.Repeat(" ", fill)
	switch {
	case p.has("-"):
		return append(out, sign+body+spaces...)
	case p.has("0") && number:
		return append(out, sign+strings.Repeat("0", fill)+body...)
	}
	return append(out, spaces+sign+body...)
}

// internet prints an address of the internet, which lies at v. Its width does not matter.
func (p *piece) internet(v uint64, read func(addr uint64, size int, text bool) ([]byte, bool)) []byte {
	size := map[byte]int{'4': 4, '6': 16}[p.verb]
	b, ok := read(v, size, false)
	if !ok {
		b = make([]byte, size)
	}
	var out bytes.Buffer
	for i, c := range b {
		switch {
		case p.verb == '6':
			if i > 0 && i%2 == 0 && !p.plain {
				out.WriteByte(':')
			}
			fmt.Fprintf(&out, "%02x", c)
		default:
			if i > 0 {
				out.WriteByte('.')
			}
			if p.plain {
				fmt.Fprintf(&out, "%03d", c)
			} else {
				fmt.Fprintf(&out, "%d", c)
			}
		}
	}
	return out.Bytes()
}

// snprintf is snprintf: the length of the text with the zero byte behind it, of which
// as much is there as fits. Zeros follow, for programs may read all that they gave.
func (x *run) snprintf() (uint64, error) {
	dst, err := x.bytesOrNone(asm.R1, asm.R2, true)
	if err != nil {
		return 0, err
	}
	data, err := x.bytesOrNone(asm.R4, asm.R5, false)
	if err != nil {
		return 0, err
	}
	var format []byte
	for at := x.r[asm.R3]; ; at++ {
		b, err := x.bytes(at, 1, false)
		if err != nil {
			return 0, err
		}
		if b[0] == 0 {
			break
		}
		format = append(format, b[0])
	}
	pieces, err := parseFormat(string(format))
	if err != nil || 8*conversions(pieces) > len(data) {
		return 0, x.fail(ErrAccess, "a format for other arguments: %q", format)
	}
	args := make([]uint64, len(data)/8)
	for i := range args {
		args[i] = loadBytes(data[8*i:], 8)
	}
	text := sprint(pieces, args, x.memory)
	if clear(dst); len(dst) > 0 {
		copy(dst[:len(dst)-1], text)
	}
	return uint64(len(text) + 1), nil
}

// bytesOrNone is the memory at a register, of a size in another one.
func (x *run) bytesOrNone(r, size asm.Register, write bool) ([]byte, error) {
	if x.r[size] == 0 {
		return nil, nil
	}
	return x.bytes(x.r[r], int(uint32(x.r[size])), write)
}

// memory is what lies at an address, of the program's own or of the process.
func (x *run) memory(addr uint64, size int, text bool) ([]byte, bool) {
	var out []byte
	for i := range size {
		b := make([]byte, 1)
		if own, err := x.bytes(addr+uint64(i), 1, false); err == nil {
			b[0] = own[0]
		} else if x.ReadUser == nil || !x.ReadUser(addr+uint64(i), b) {
			return nil, false
		}
		if text && b[0] == 0 {
			break
		}
		out = append(out, b[0])
	}
	return out, true
}
