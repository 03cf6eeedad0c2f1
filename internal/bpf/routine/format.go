package routine

import (
	"github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
	"trapless/internal/bpf"
)

// Registers of snprintf: dest is where the text goes, source and chunk are those of a read.
const (
	written = asm.R7 // bytes of the text so far, also those that had no room
	value   = asm.R3
)

// Places on the stack of snprintf, below those of a read.
const (
	fmtLimit = -40 // of the text, without the zero byte; -1 where there is no room at all
	fmtAt    = -48 // what of the format comes next
	fmtData  = -56 // the next argument
	fmtFlags = -64
	fmtWidth = -72
	fmtPre   = -80 // spaces before
	fmtSign  = -88 // a character, or 0
	fmtZeros = -96
	fmtPost  = -104 // spaces behind
	fmtBody  = -112 // where the text of the conversion lies
	fmtLen   = -120
	fmtEnd   = -128 // of the digits, which are written from the last to the first
	fmtBytes = -192 // of an address of the internet
)

// Flags of a conversion.
const (
	flagLeft  = 1
	flagPlus  = 2
	flagSpace = 4
	flagZero  = 8
)

// Snprintf is snprintf: (destination, size, format, arguments, their size, slot) the length
// of the text with the zero byte. The format was checked. What a conversion prints is
// some spaces, a sign, some zeros, a text in memory and some spaces.
func Snprintf(m *Memory) *bpf.Program {
	c := &code{ml: &abi.MapLayout{}}
	c.add(asm.StoreMem(asm.R10, keptAt, asm.R6, asm.DWord), asm.StoreMem(asm.R10, keptDest, asm.R1, asm.DWord), asm.Mov.Reg32(asm.R2, asm.R2),
		asm.StoreMem(asm.R10, keptSize, asm.R2, asm.DWord), asm.StoreMem(asm.R10, fmtAt, asm.R3, asm.DWord), asm.StoreMem(asm.R10, fmtData, asm.R4, asm.DWord),
		asm.Mov.Reg(dest, asm.R1), asm.Mov.Imm(written, 0), asm.Sub.Imm(asm.R2, 1), asm.StoreMem(asm.R10, fmtLimit, asm.R2, asm.DWord))
	c.bind("next")
	c.add(asm.LoadMem(asm.R5, asm.R10, fmtAt, asm.DWord), asm.LoadMem(asm.R0, asm.R5, 0, asm.Byte), asm.JEq.Imm(asm.R0, 0, "done"),
		asm.Add.Imm(asm.R5, 1), asm.JNE.Imm(asm.R0, '%', "literal"),
		asm.LoadMem(asm.R0, asm.R5, 0, asm.Byte), asm.JNE.Imm(asm.R0, '%', "conversion"), asm.Add.Imm(asm.R5, 1))
	c.bind("literal")
	c.add(asm.StoreMem(asm.R10, fmtAt, asm.R5, asm.DWord))
	c.put()
	c.add(asm.Ja.Label("next"))
	c.field()
	c.verb()
	c.pointer()
	c.integer()
	c.text(m)
	c.internet(m)
	c.pad()
	c.output()
	c.endText()
	return c.named("snprintf")
}

// put adds the character in r0 to the text. r1 and r2 are used.
func (c *code) put() {
	full := c.fresh("full")
	c.add(asm.LoadMem(asm.R1, asm.R10, fmtLimit, asm.DWord), asm.JSGE.Reg(written, asm.R1, full),
		asm.Mov.Reg(asm.R2, dest), asm.Add.Reg(asm.R2, written), asm.StoreMem(asm.R2, 0, asm.R0, asm.Byte))
	c.bind(full)
	c.add(asm.Add.Imm(written, 1))
}

// keep stores a number on the stack.
func (c *code) keep(at int16, v int32) {
	c.add(asm.Mov.Imm(asm.R1, v), asm.StoreMem(asm.R10, at, asm.R1, asm.DWord))
}

// field reads flags and width at r5, and fetches the argument.
func (c *code) field() {
	c.bind("conversion")
	c.add(asm.Mov.Imm(asm.R4, 0))
	c.bind("flag")
	c.add(asm.LoadMem(asm.R0, asm.R5, 0, asm.Byte))
	for _, f := range []struct {
		char byte
		flag int32
	}{{'-', flagLeft}, {'+', flagPlus}, {' ', flagSpace}, {'0', flagZero}} {
		other := c.fresh("flag")
		c.add(asm.JNE.Imm(asm.R0, int32(f.char), other), asm.Or.Imm(asm.R4, f.flag), asm.Add.Imm(asm.R5, 1), asm.Ja.Label("flag"))
		c.bind(other)
	}
	c.add(asm.StoreMem(asm.R10, fmtFlags, asm.R4, asm.DWord), asm.Mov.Imm(asm.R4, 0))
	c.bind("digit")
	c.add(asm.LoadMem(asm.R0, asm.R5, 0, asm.Byte), asm.JLT.Imm(asm.R0, '0', "width"), asm.JGT.Imm(asm.R0, '9', "width"),
		asm.Mul.Imm(asm.R4, 10), asm.Add.Reg(asm.R4, asm.R0), asm.Sub.Imm(asm.R4, '0'), asm.Add.Imm(asm.R5, 1), asm.Ja.Label("digit"))
	c.bind("width")
	c.add(asm.StoreMem(asm.R10, fmtWidth, asm.R4, asm.DWord))
	c.keep(fmtSign, 0)
	c.add(asm.LoadMem(asm.R1, asm.R10, fmtData, asm.DWord), asm.LoadMem(value, asm.R1, 0, asm.DWord), asm.Add.Imm(asm.R1, 8),
		asm.StoreMem(asm.R10, fmtData, asm.R1, asm.DWord))
}

// verb goes where the conversion at r5 is done, with r4 the number of l's, and behind it
// the format.
func (c *code) verb() {
	c.add(asm.Mov.Imm(asm.R4, 0))
	c.bind("long")
	c.add(asm.LoadMem(asm.R0, asm.R5, 0, asm.Byte), asm.Add.Imm(asm.R5, 1), asm.JNE.Imm(asm.R0, 'l', "verb"), asm.Add.Imm(asm.R4, 1), asm.Ja.Label("long"))
	c.bind("verb")
	c.add(asm.StoreMem(asm.R10, fmtAt, asm.R5, asm.DWord),
		asm.JEq.Imm(asm.R0, 's', "string"), asm.JEq.Imm(asm.R0, 'c', "character"), asm.JEq.Imm(asm.R0, 'p', "pointer"),
		asm.JNE.Imm(asm.R4, 0, "sized"), asm.Mov.Reg32(value, value),
		asm.JEq.Imm(asm.R0, 'u', "decimal"), asm.JEq.Imm(asm.R0, 'x', "hexadecimal"), asm.JEq.Imm(asm.R0, 'X', "capitals"),
		asm.LSh.Imm(value, 32), asm.ArSh.Imm(value, 32))
	c.bind("sized")
	c.add(asm.JEq.Imm(asm.R0, 'u', "decimal"), asm.JEq.Imm(asm.R0, 'x', "hexadecimal"), asm.JEq.Imm(asm.R0, 'X', "capitals"),
		asm.LoadMem(asm.R4, asm.R10, fmtFlags, asm.DWord), asm.JSGE.Imm(value, 0, "positive"), asm.Neg.Imm(value, 0))
	c.keep(fmtSign, '-')
	c.add(asm.Ja.Label("decimal"))
	c.bind("positive")
	c.add(asm.JSet.Imm(asm.R4, flagPlus, "plus"), asm.JSet.Imm(asm.R4, flagSpace, "space"), asm.Ja.Label("decimal"))
	c.bind("plus")
	c.keep(fmtSign, '+')
	c.add(asm.Ja.Label("decimal"))
	c.bind("space")
	c.keep(fmtSign, ' ')
	c.add(asm.Ja.Label("decimal"))
}

// pointer looks at what follows %p at r5.
func (c *code) pointer() {
	c.bind("pointer")
	c.add(asm.LoadMem(asm.R0, asm.R5, 0, asm.Byte), asm.Add.Imm(asm.R5, 1),
		asm.JEq.Imm(asm.R0, 'x', "skip"), asm.JEq.Imm(asm.R0, 'K', "skip"), asm.JEq.Imm(asm.R0, 'k', "other string"), asm.JEq.Imm(asm.R0, 'u', "other string"),
		asm.JEq.Imm(asm.R0, 'i', "internet"), asm.JEq.Imm(asm.R0, 'I', "internet"), asm.Ja.Label("address"))
	c.bind("other string")
	c.add(asm.Add.Imm(asm.R5, 1), asm.StoreMem(asm.R10, fmtAt, asm.R5, asm.DWord), asm.Ja.Label("string"))
	c.bind("skip")
	c.add(asm.StoreMem(asm.R10, fmtAt, asm.R5, asm.DWord))
	c.bind("address")
	c.add(asm.LoadMem(asm.R0, asm.R10, fmtWidth, asm.DWord), asm.JNE.Imm(asm.R0, 0, "hexadecimal"))
	c.keep(fmtWidth, 16)
	c.add(asm.LoadMem(asm.R0, asm.R10, fmtFlags, asm.DWord), asm.Or.Imm(asm.R0, flagZero), asm.StoreMem(asm.R10, fmtFlags, asm.R0, asm.DWord), asm.Ja.Label("hexadecimal"))
}

// integer writes the digits of a number.
func (c *code) integer() {
	c.bind("capitals")
	c.add(asm.Mov.Imm(asm.R4, 'A'-10), asm.Ja.Label("sixteen"))
	c.bind("hexadecimal")
	c.add(asm.Mov.Imm(asm.R4, 'a'-10))
	c.bind("sixteen")
	c.add(asm.Mov.Imm(asm.R5, 16), asm.Ja.Label("digits"))
	c.bind("decimal")
	c.add(asm.Mov.Imm(asm.R5, 10))
	c.bind("digits")
	c.add(asm.Mov.Reg(source, asm.R10), asm.Add.Imm(source, fmtEnd))
	c.bind("one digit")
	c.add(asm.Mov.Reg(asm.R0, value), asm.Mod.Reg(asm.R0, asm.R5), asm.JLT.Imm(asm.R0, 10, "below ten"), asm.Add.Reg(asm.R0, asm.R4), asm.Ja.Label("digit done"))
	c.bind("below ten")
	c.add(asm.Add.Imm(asm.R0, '0'))
	c.bind("digit done")
	c.add(asm.Sub.Imm(source, 1), asm.StoreMem(source, 0, asm.R0, asm.Byte), asm.Div.Reg(value, asm.R5), asm.JNE.Imm(value, 0, "one digit"))
	c.bind("body")
	c.add(asm.StoreMem(asm.R10, fmtBody, source, asm.DWord), asm.Mov.Reg(asm.R0, asm.R10), asm.Add.Imm(asm.R0, fmtEnd), asm.Sub.Reg(asm.R0, source),
		asm.StoreMem(asm.R10, fmtLen, asm.R0, asm.DWord), asm.Ja.Label("pad"))
}

// text finds how long a string is, or makes one of a character. Zeros fill no field of theirs.
func (c *code) text(m *Memory) {
	c.bind("character")
	c.add(asm.Mov.Reg(source, asm.R10), asm.Add.Imm(source, fmtEnd-1), asm.StoreMem(source, 0, value, asm.Byte))
	c.noZeros()
	c.add(asm.Ja.Label("body"))
	c.bind("string")
	c.add(asm.StoreMem(asm.R10, fmtBody, value, asm.DWord), asm.Mov.Reg(source, value))
	c.noZeros()
	c.bind("measure")
	c.page(m, "nothing")
	c.bind("character of it")
	c.add(asm.LoadMem(asm.R0, source, 0, asm.Byte), asm.JEq.Imm(asm.R0, 0, "measured"), asm.Add.Imm(source, 1), asm.Sub.Imm(chunk, 1),
		asm.LoadMem(asm.R1, asm.R10, fmtBody, asm.DWord), asm.Mov.Reg(asm.R0, source), asm.Sub.Reg(asm.R0, asm.R1), asm.JGE.Imm(asm.R0, bpf.MaxFormatString, "measured"),
		asm.JNE.Imm(chunk, 0, "character of it"), asm.Ja.Label("measure"))
	c.bind("nothing")
	c.add(asm.LoadMem(source, asm.R10, fmtBody, asm.DWord))
	c.bind("measured")
	c.add(asm.LoadMem(asm.R1, asm.R10, fmtBody, asm.DWord), asm.Sub.Reg(source, asm.R1), asm.StoreMem(asm.R10, fmtLen, source, asm.DWord), asm.Ja.Label("pad"))
}

func (c *code) noZeros() {
	c.add(asm.LoadMem(asm.R0, asm.R10, fmtFlags, asm.DWord), asm.And.Imm(asm.R0, flagLeft), asm.StoreMem(asm.R10, fmtFlags, asm.R0, asm.DWord))
}

// internet prints an address of the internet: of the i or I in r0 and the digit at r5.
// One that cannot be read is 0.
func (c *code) internet(m *Memory) {
	c.bind("internet")
	c.keep(fmtWidth, 0)
	c.add(asm.StoreMem(asm.R10, fmtFlags, asm.R0, asm.DWord), asm.LoadMem(asm.R1, asm.R5, 0, asm.Byte), asm.Add.Imm(asm.R5, 1), asm.StoreMem(asm.R10, fmtAt, asm.R5, asm.DWord),
		asm.StoreMem(asm.R10, fmtBody, asm.R1, asm.DWord), asm.Mov.Reg(source, value), asm.Mov.Imm(asm.R0, 4), asm.JEq.Imm(asm.R1, '4', "version"), asm.Mov.Imm(asm.R0, 16))
	c.bind("version")
	c.add(asm.StoreMem(asm.R10, fmtLen, asm.R0, asm.DWord))
	c.keep(fmtPre, 0) // bytes that are read
	c.bind("some bytes")
	c.page(m, "no address")
	c.bind("one byte")
	c.add(asm.LoadMem(asm.R1, asm.R10, fmtPre, asm.DWord), asm.LoadMem(asm.R0, source, 0, asm.Byte), asm.Mov.Reg(asm.R2, asm.R10), asm.Add.Reg(asm.R2, asm.R1),
		asm.StoreMem(asm.R2, fmtBytes, asm.R0, asm.Byte), asm.Add.Imm(asm.R1, 1), asm.StoreMem(asm.R10, fmtPre, asm.R1, asm.DWord),
		asm.LoadMem(asm.R0, asm.R10, fmtLen, asm.DWord), asm.JEq.Reg(asm.R0, asm.R1, "all bytes"), asm.Add.Imm(source, 1), asm.Sub.Imm(chunk, 1),
		asm.JNE.Imm(chunk, 0, "one byte"), asm.Ja.Label("some bytes"))
	c.bind("no address")
	c.add(asm.Mov.Imm(asm.R0, 0), asm.StoreMem(asm.R10, fmtBytes, asm.R0, asm.DWord), asm.StoreMem(asm.R10, fmtBytes+8, asm.R0, asm.DWord))
	c.bind("all bytes")
	c.add(asm.Mov.Reg(source, asm.R10), asm.Add.Imm(source, fmtEnd), asm.LoadMem(chunk, asm.R10, fmtLen, asm.DWord))
	c.bind("part")
	c.add(asm.Sub.Imm(chunk, 1), asm.Mov.Reg(asm.R2, asm.R10), asm.Add.Reg(asm.R2, chunk), asm.LoadMem(value, asm.R2, fmtBytes, asm.Byte),
		asm.LoadMem(asm.R4, asm.R10, fmtFlags, asm.DWord), asm.LoadMem(asm.R0, asm.R10, fmtBody, asm.DWord), asm.JEq.Imm(asm.R0, '6', "two digits"))
	c.add(asm.Mov.Imm(asm.R5, 3)) // digits that are left to %pi4
	c.bind("decimal part")
	c.add(asm.Mov.Reg(asm.R0, value), asm.Mod.Imm(asm.R0, 10), asm.Add.Imm(asm.R0, '0'), asm.Sub.Imm(source, 1), asm.StoreMem(source, 0, asm.R0, asm.Byte),
		asm.Div.Imm(value, 10), asm.Sub.Imm(asm.R5, 1), asm.JNE.Imm(value, 0, "decimal part"),
		asm.JEq.Imm(asm.R4, 'I', "dot"), asm.JNE.Imm(asm.R5, 0, "decimal part"))
	c.bind("dot")
	c.add(asm.JEq.Imm(chunk, 0, "body"), asm.Mov.Imm(asm.R0, '.'), asm.Sub.Imm(source, 1), asm.StoreMem(source, 0, asm.R0, asm.Byte), asm.Ja.Label("part"))
	c.bind("two digits")
	for range 2 {
		small := c.fresh("small")
		c.add(asm.Mov.Reg(asm.R0, value), asm.And.Imm(asm.R0, 15), asm.RSh.Imm(value, 4), asm.Add.Imm(asm.R0, '0'), asm.JLE.Imm(asm.R0, '9', small), asm.Add.Imm(asm.R0, 'a'-'9'-1))
		c.bind(small)
		c.add(asm.Sub.Imm(source, 1), asm.StoreMem(source, 0, asm.R0, asm.Byte))
	}
	c.add(asm.JEq.Imm(chunk, 0, "body"), asm.JSet.Imm(chunk, 1, "part"), asm.JEq.Imm(asm.R4, 'i', "part"),
		asm.Mov.Imm(asm.R0, ':'), asm.Sub.Imm(source, 1), asm.StoreMem(source, 0, asm.R0, asm.Byte), asm.Ja.Label("part"))
}

// pad finds what fills the field.
func (c *code) pad() {
	c.bind("pad")
	for _, at := range []int16{fmtPre, fmtZeros, fmtPost} {
		c.keep(at, 0)
	}
	c.add(asm.LoadMem(asm.R0, asm.R10, fmtWidth, asm.DWord), asm.LoadMem(asm.R1, asm.R10, fmtLen, asm.DWord), asm.Sub.Reg(asm.R0, asm.R1),
		asm.LoadMem(asm.R1, asm.R10, fmtSign, asm.DWord), asm.JEq.Imm(asm.R1, 0, "no sign"), asm.Sub.Imm(asm.R0, 1))
	c.bind("no sign")
	c.add(asm.JSLE.Imm(asm.R0, 0, "output"), asm.LoadMem(asm.R4, asm.R10, fmtFlags, asm.DWord),
		asm.JSet.Imm(asm.R4, flagLeft, "left"), asm.JSet.Imm(asm.R4, flagZero, "zeros"),
		asm.StoreMem(asm.R10, fmtPre, asm.R0, asm.DWord), asm.Ja.Label("output"))
	c.bind("left")
	c.add(asm.StoreMem(asm.R10, fmtPost, asm.R0, asm.DWord), asm.Ja.Label("output"))
	c.bind("zeros")
	c.add(asm.StoreMem(asm.R10, fmtZeros, asm.R0, asm.DWord))
}

// output adds what a conversion prints.
func (c *code) output() {
	c.bind("output")
	c.fill(fmtPre, ' ')
	c.add(asm.LoadMem(asm.R0, asm.R10, fmtSign, asm.DWord), asm.JEq.Imm(asm.R0, 0, "after sign"))
	c.put()
	c.bind("after sign")
	c.fill(fmtZeros, '0')
	c.add(asm.LoadMem(source, asm.R10, fmtBody, asm.DWord), asm.LoadMem(chunk, asm.R10, fmtLen, asm.DWord))
	c.bind("copy")
	c.add(asm.JEq.Imm(chunk, 0, "copied"), asm.LoadMem(asm.R0, source, 0, asm.Byte), asm.Add.Imm(source, 1), asm.Sub.Imm(chunk, 1))
	c.put()
	c.add(asm.Ja.Label("copy"))
	c.bind("copied")
	c.fill(fmtPost, ' ')
	c.add(asm.Ja.Label("next"))
}

// fill adds a character as often as a number on the stack says.
func (c *code) fill(count int16, char int32) {
	again, over := c.fresh("again"), c.fresh("over")
	c.add(asm.LoadMem(asm.R5, asm.R10, count, asm.DWord))
	c.bind(again)
	c.add(asm.JEq.Imm(asm.R5, 0, over), asm.Sub.Imm(asm.R5, 1), asm.Mov.Imm(asm.R0, char))
	c.put()
	c.add(asm.Ja.Label(again))
	c.bind(over)
}

// endText writes the zero byte and clears what the text leaves of its place.
func (c *code) endText() {
	c.bind("done")
	c.add(asm.Mov.Reg(asm.R0, written), asm.Add.Imm(asm.R0, 1), asm.LoadMem(asm.R2, asm.R10, keptSize, asm.DWord), asm.JEq.Imm(asm.R2, 0, "cleared"),
		asm.LoadMem(asm.R1, asm.R10, fmtLimit, asm.DWord), asm.JLE.Reg(written, asm.R1, "fits"), asm.Mov.Reg(written, asm.R1))
	c.bind("fits")
	c.add(asm.Add.Reg(dest, written), asm.Sub.Reg(asm.R2, written), asm.Mov.Reg(left, asm.R2))
	c.clearLeft()
}
