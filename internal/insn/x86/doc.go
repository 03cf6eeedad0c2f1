// Package x86 decodes x86 instructions: their length, the place of each part,
// where they branch to, and which general registers, flags and memory they
// touch. Plans and relocations rest on it.
//
// Bytes go in, one Inst comes out: a plain value that refers to nothing. The
// package prints no assembly, knows no process and no file, and never guesses:
// bytes that it does not know are ErrInvalid.
//
// All facts about opcodes stand in opcodes.txt, one line an opcode; gen turns
// them into tables.go. Decode walks: prefixes, then the opcode's map, then a
// small decision tree (mandatory prefix, ModRM fields, ...) to a row; the row
// says what follows the opcode, and later what the instruction does.
package x86

//go:generate go run ./gen
