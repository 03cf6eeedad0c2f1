package bpf

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"

	"trapless/internal/abi"
)

// TraceMap stands for the map of a record of trace_printk or trace_vprintk. Its
// payload is the size of the format and the number of arguments, 4 bytes each,
// the arguments, and the format.
const TraceMap = abi.RecTrace - 1

// Limits of such a record, and its parts, in bytes.
const (
	maxTraceFormat = 256
	maxTraceArgs   = 12 // include/linux/bpf.h, MAX_BPRINTF_VARARGS
	traceHeader    = 8
)

// tracePayload makes the payload of such a record.
func tracePayload(format []byte, args []uint64) []byte {
	out := binary.LittleEndian.AppendUint32(nil, uint32(len(format)))
	out = binary.LittleEndian.AppendUint32(out, uint32(len(args)))
	for _, a := range args {
		out = binary.LittleEndian.AppendUint64(out, a)
	}
	return append(out, format...)
}

// FormatTrace is the text of such a record. Strings are not copied when the probe
// is hit, so their addresses stand for them.
func FormatTrace(payload []byte) (string, error) {
	if len(payload) < traceHeader {
		return "", fmt.Errorf("a trace record of %d bytes", len(payload))
	}
	size, n := int(binary.LittleEndian.Uint32(payload)), int(binary.LittleEndian.Uint32(payload[4:]))
	if n < 0 || n > maxTraceArgs || size < 0 || traceHeader+8*n+size != len(payload) {
		return "", fmt.Errorf("a trace record of %d bytes, for a format of %d and %d arguments", len(payload), size, n)
	}
	args := make([]uint64, n)
	for i := range args {
		args[i] = binary.LittleEndian.Uint64(payload[traceHeader+8*i:])
	}
	format, _, _ := bytes.Cut(payload[traceHeader+8*n:], []byte{0})
	return formatC(string(format), args), nil
}

// formatC formats as printf does, with the kernel's conversions
// (kernel/trace/bpf_trace.c).
func formatC(format string, args []uint64) string {
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(format, "%")
		b.WriteString(before)
		if !found {
			return b.String()
		}
		flags := rest[:len(rest)-len(strings.TrimLeft(rest, "-+ #0123456789."))]
		rest = rest[len(flags):]
		length := rest[:len(rest)-len(strings.TrimLeft(rest, "hlzj"))]
		rest = rest[len(length):]
		if rest == "" {
			return b.String() + "%" + flags + length
		}
		verb := rest[0]
		format = rest[1:]
		if verb == '%' {
			b.WriteByte('%')
			continue
		}
		if len(args) == 0 {
			b.WriteString("%" + flags + length + string(verb))
			continue
		}
		b.WriteString(conversion(flags, length, verb, args[0]))
		args = args[1:]
	}
}

func conversion(flags, length string, verb byte, v uint64) string {
	long := strings.ContainsAny(length, "lzj")
	switch verb {
	case 'd', 'i':
		if !long {
			v = uint64(int64(int32(v)))
		}
		return fmt.Sprintf("%"+flags+"d", int64(v))
	case 'u', 'x', 'X', 'o':
		if !long {
			v = uint64(uint32(v))
		}
		if verb == 'u' {
			verb = 'd'
		}
		return fmt.Sprintf("%"+flags+string(verb), v)
	case 'c':
		return fmt.Sprintf("%"+flags+"c", rune(byte(v)))
	}
	return fmt.Sprintf("%#x", v) // p, s and what else there may be
}
