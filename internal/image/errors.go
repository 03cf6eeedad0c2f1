package image

import (
	"errors"
	"fmt"
	"strings"
)

// Why a file cannot be probed. New wraps one of them in a *FormatError.
var (
	ErrNotELF    = errors.New("not an ELF file")
	Err32Bit     = errors.New("a 32-bit ELF file")
	ErrMachine   = errors.New("an ELF file of another machine")
	ErrType      = errors.New("neither a program nor a shared library")
	ErrMalformed = errors.New("a malformed ELF file")
)

// FormatError says what is wrong with a file: one of the errors above, and more of it.
type FormatError struct {
	Err    error
	Detail string
}

func (e *FormatError) Error() string { return e.Err.Error() + ": " + e.Detail }

func (e *FormatError) Unwrap() error { return e.Err }

func malformed(format string, args ...any) error {
	return &FormatError{ErrMalformed, fmt.Sprintf(format, args...)}
}

// NotFoundError is returned when no function has a name.
type NotFoundError struct {
	Name        string
	Suggestions []string // at most three similar names, the nearest first
	NoSymtab    bool     // the file has lost its symbol table: only exported functions have names
}

func (e *NotFoundError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "no function %q", e.Name)
	if len(e.Suggestions) > 0 {
		fmt.Fprintf(&b, "; did you mean %s?", strings.Join(e.Suggestions, ", "))
	}
	if e.NoSymtab {
		b.WriteString(" (the file is stripped: only exported functions have names; others can be given as 0xADDRESS)")
	}
	return b.String()
}

// NoMarkerError is returned when a file has no USDT probe of a name.
type NoMarkerError struct {
	Name string
	Have []string // probes that the file has, at most eight and "..."
}

func (e *NoMarkerError) Error() string {
	if len(e.Have) == 0 {
		return fmt.Sprintf("no USDT probe %q: the file has none at all", e.Name)
	}
	return fmt.Sprintf("no USDT probe %q; the file has %s", e.Name, strings.Join(e.Have, ", "))
}

// IFuncError is returned for a name that stands for a choice: its symbol (STT_GNU_IFUNC) is the code that
// chooses an implementation when the program is loaded, not the function that is called.
type IFuncError struct {
	Name            string
	Implementations []string // functions that look like those it chooses among, at most ten
}

func (e *IFuncError) Error() string {
	s := fmt.Sprintf("%q is chosen among implementations when the program is loaded; probe one of those", e.Name)
	if len(e.Implementations) > 0 {
		s += ": " + strings.Join(e.Implementations, ", ")
	}
	return s
}
