// Package lang compiles scripts of the bpftrace language to eBPF.
//
// A script goes through four steps, each in files of its own:
//
//	text ──lexer, parser──▶ tree ──expander──▶ tree ──checker──▶ typed tree ──lowering──▶ Script
//
// The parser decides what is written; the expander puts in macros and functions
// where they are called, each time a copy; the checker decides what is meant:
// names, types, constants, and which maps and events there are. Lowering cannot fail but for
// the size of the stack. Every remark names its place in the text; a construct
// that bpftrace knows and this package does not is an error that says so, never
// something else that runs.
//
// The dialect is that of bpftrace 0.26 (docs/language.md of that project; what
// the document leaves open follows its implementation):
//
//   - An integer has a type from int8 to uint64. A literal has the smallest
//     signed type that holds it, and a literal that is not negative takes the
//     sign of what it meets.
//   - Arithmetic is done in 64 bits. Its result is an int64 if an operand is
//     signed or the operator is '-', else a uint64. Comparisons are signed
//     unless both sides are unsigned.
//   - '>>' shifts in zeros, also for signed values; between literals, where
//     the result is computed here, it shifts in the sign.
//
// bpftrace leaves signed division undefined; here '/' and '%' of an int64
// truncate toward zero, as in C. A division by zero that is only seen at run
// time gives 1, as does a remainder, and a warning (see Remark).
// Shift counts are taken modulo 64.
//
// Every aggregation has a cell in each thread's slot, and a hit updates one or
// two words of it, each by one instruction: that is exact for any number of
// threads, and in signal handlers. avg and stats have sum's cell; min and max
// keep the extreme so coded that it only grows (Map.Value decodes it); hist and
// lhist have a word for each bucket, in an order of their own (Buckets). As in
// bpftrace hist takes its argument as signed: values from 2^63 on count as
// negative. A histogram with keys has all buckets for each of max_map_keys keys
// in each slot. That is address space, not memory, but with many threads and
// fine buckets it may be too much; fewer keys (max_map_keys) help.
//
// A time series (tseries) is kept by the tracer: a hit writes an event with the value and
// the time. Intervals are multiples of their length since 1970, by the clock as it was
// when the tracer began.
//
// A map that is assigned values is shared by all threads. '+=', '-=', '++' and
// '--' on it are one atomic addition, so unlike in bpftrace none is lost; other
// operators read, compute and write. Keys that were deleted make room for others
// when there are max_map_keys of them. A map whose only key is tid, and of which
// entries are deleted, has a place in every thread's own slot.
//
// What needs a call of a helper, or statements, is computed before the rest of its
// expression, in the order of the text; where a condition decides whether a part is
// computed (&&, ||, ?:), that is obeyed.
//
// A number is held in a register. Other values (texts, tuples, records, structs,
// arrays, buffers) lie in memory: small ones on the program's stack, others in
// scratch memory of the running thread (the hidden map "@(scratch)"). In it, in
// keys, in values of maps and in events a value takes whole words, a number 8 bytes
// (Layout); Type.Decode reads it. A text has zeros behind it, so that two are
// compared by words.
//
// str reads max_strlen bytes, 127 unless that is set, and a text that is cut there
// is printed with "..", as in bpftrace. A key has 64 bytes in all; texts are cut to
// that with a warning. What cannot be read through a pointer is zeros.
//
// Structs, unions, enumerations and typedefs are read from declarations of C in the
// script; others come from a TypeSource. Headers are not read. #define makes
// constants and macros.
//
// Loops end when a run's fuel is spent, at the latest. A loop over a map goes over
// copies of the entries that there are when it begins; it, len() of a map and
// aggregations as numbers exist in programs of the tracer (begin, end, interval).
//
// A uretprobe runs at the instructions by which its function is left, of which
// retval reads the register for results. So, unlike in bpftrace, calls that were
// under way when the probe was put in are counted when they return, as are all
// calls of a recursion, and a function that ends by jumping to another one (a
// tail call) has returned there: what the other one returns is not known yet, and
// a program that asks for it is refused. A function that is left by an exception
// or by longjmp does not return.
//
// A compiled Script is plain data. Its programs share one numbering of maps.
// What a program wants the tracer to do (print, clear, exit, ...) it writes
// into the event ring: a record of 8-byte words, the number of an Action and
// then the arguments that were not known at compile time.
//
// The package knows no process and resolves no path, library or symbol: an
// AttachPoint says what the script says, but a line of source, for which a TypeSource
// finds addresses.
package lang
