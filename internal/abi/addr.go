// Package abi holds the layouts that generated code in a target and the tracer
// share: addresses, the arena and everything in it. It is their one source of
// truth; it knows no process, no instruction and no program.
package abi

import "fmt"

// Addr is a virtual address in a target's address space. It is never an
// address of the tracer and never a file offset.
type Addr uint64

// String prints the address as 0x-prefixed hexadecimal.
func (a Addr) String() string { return fmt.Sprintf("0x%x", uint64(a)) }

// PageSize is the size of a base page on every architecture that trapless
// supports so far, in bytes.
const PageSize = 4096

// PageDown rounds down to a page boundary.
func (a Addr) PageDown() Addr { return a &^ (PageSize - 1) }

// PageUp rounds up to a page boundary.
func (a Addr) PageUp() Addr { return (a + PageSize - 1) &^ (PageSize - 1) }

// Range is the half-open interval [Start, End).
type Range struct{ Start, End Addr }

// Len is the number of bytes in the range.
func (r Range) Len() uint64 { return uint64(r.End - r.Start) }

// Contains reports whether a lies in the range.
func (r Range) Contains(a Addr) bool { return r.Start <= a && a < r.End }

// Overlaps reports whether the two ranges share a byte.
func (r Range) Overlaps(o Range) bool { return r.Start < o.End && o.Start < r.End }
