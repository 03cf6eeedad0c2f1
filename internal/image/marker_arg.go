package image

import (
	"slices"
	"strconv"
	"strings"
)

// MarkerArg says where an argument of a USDT probe is, as the assembler's operand in the note says it:
//
//	-4@%eax              in a register
//	8@-24(%rbp)          in memory
//	8@8(%rax,%rcx,4)     in memory
//	4@counter+4(%rip)    in memory, at a symbol
//	4@$-1                a constant
//
// The value of a register operand is the register's; of a memory operand, what is at Base + Index*Scale +
// Disp (+ the file's bias, if Relocated); of a constant, Disp (+ the bias).
type MarkerArg struct {
	Text   string // as it stands in the note
	Size   int    // of the value in bytes: 1, 2, 4 or 8
	Signed bool
	Float  bool // it is a floating point number

	Kind      ArgKind
	Reg       string // of a register: its 64-bit name (rax, r8), or xmm0 to xmm15
	Shift     int    // of a register: the value begins at this bit (8 for ah)
	Base      string // of memory: registers, "" without
	Index     string
	Scale     int
	Disp      int64
	Symbol    string // whose address is a part of Disp
	Relocated bool   // Disp is an address in the file's own terms

	Problem string // why it cannot be told where the argument is; then only Text is set
}

// ArgKind tells where an argument is.
type ArgKind uint8

// Where an argument is.
const (
	ArgRegister ArgKind = iota
	ArgMemory
	ArgConstant
)

// parseMarkerArg reads one argument. What is not understood is said in Problem: the others stay usable.
func parseMarkerArg(text string) MarkerArg {
	a := MarkerArg{Text: text, Size: 8}
	operand := text
	if size, rest, ok := strings.Cut(text, "@"); ok && a.size(size) {
		operand = rest
	}
	var ok bool
	switch {
	case operand == "":
	case operand[0] == '%' && !strings.Contains(operand, ":"):
		ok = a.register(operand[1:])
	case operand[0] == '$':
		a.Kind = ArgConstant
		ok = a.displacement(operand[1:])
		a.Relocated = a.Symbol != ""
	default:
		a.Kind = ArgMemory
		ok = a.memory(operand)
	}
	if !ok {
		return MarkerArg{Text: text, Problem: "its operand is not understood"}
	}
	return a
}

// size reads what is before the @: the number of bytes, negative if the value is signed, and f if it is a
// floating point number.
func (a *MarkerArg) size(text string) bool {
	text, a.Float = strings.CutSuffix(text, "f")
	n, err := strconv.Atoi(text)
	a.Signed = n < 0
	n = max(n, -n)
	if err != nil || n != 1 && n != 2 && n != 4 && n != 8 {
		return false
	}
	a.Size = n
	return true
}

func (a *MarkerArg) register(name string) bool {
	a.Kind = ArgRegister
	if number, ok := strings.CutPrefix(name, "xmm"); ok {
		n, err := strconv.Atoi(number)
		a.Reg = "xmm" + strconv.Itoa(n)
		return err == nil && n >= 0 && n < 16
	}
	if len(name) == 2 && name[1] == 'h' { // ah, bh, ch, dh
		a.Shift = 8
		name = name[:1] + "l"
	}
	var ok bool
	a.Reg, ok = wholeRegister(name)
	return ok
}

// registers64 are the names of the general registers that the instruction set has by letters.
var registers64 = []string{"rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp", "rsp"}

// wholeRegister is the 64-bit register that one of any size is a part of.
func wholeRegister(name string) (string, bool) {
	if slices.Contains(registers64, name) {
		return name, true
	}
	if number, ok := strings.CutPrefix(name, "r"); ok {
		number = strings.TrimRight(number, "dwb")
		n, err := strconv.Atoi(number)
		if err == nil && n >= 8 && n < 16 && len(name) <= len("r"+number)+1 {
			return "r" + number, true
		}
	}
	for _, r := range registers64 {
		letters := r[1:]
		low := letters[:1] + "l" // al
		if letters[1] != 'x' {
			low = letters + "l" // sil
		}
		if name == "e"+letters || name == letters || name == low {
			return r, true
		}
	}
	return "", false
}

// memory reads DISP(BASE,INDEX,SCALE), of which every part may be missing.
func (a *MarkerArg) memory(operand string) bool {
	disp, rest, parens := strings.Cut(operand, "(")
	if !a.displacement(disp) {
		return false
	}
	if !parens {
		a.Relocated = true
		return disp != ""
	}
	inside, ok := strings.CutSuffix(rest, ")")
	parts := strings.Split(inside, ",")
	if !ok || len(parts) > 3 {
		return false
	}
	if parts[0] == "%rip" {
		a.Relocated = true // by the linker: sym(%rip) is the symbol's place
		return len(parts) == 1 && a.Symbol != ""
	}
	a.Relocated = a.Symbol != ""
	if a.Base, ok = addressRegister(parts[0]); !ok {
		return false
	}
	if len(parts) > 1 {
		if a.Index, ok = addressRegister(parts[1]); !ok || a.Index == "rsp" {
			return false
		}
		a.Scale = 1
	}
	if len(parts) > 2 {
		n, err := strconv.Atoi(parts[2])
		if err != nil || n != 1 && n != 2 && n != 4 && n != 8 {
			return false
		}
		a.Scale = n
	}
	return a.Base != "" || a.Index != "" || a.Symbol != ""
}

// addressRegister reads a 64-bit register, or nothing.
func addressRegister(text string) (string, bool) {
	if text == "" {
		return "", true
	}
	name, ok := strings.CutPrefix(text, "%")
	whole, known := wholeRegister(name)
	return whole, ok && known && whole == name
}

// displacement reads a sum of numbers and at most one symbol: -8, sym, sym+8, 8+sym, sym-4+2.
func (a *MarkerArg) displacement(text string) bool {
	for text != "" {
		sign := int64(1)
		switch text[0] {
		case '-':
			sign, text = -1, text[1:]
		case '+':
			text = text[1:]
		}
		end := strings.IndexAny(text, "+-")
		if end < 0 {
			end = len(text)
		}
		term := text[:end]
		text = text[end:]
		n, err := parseTerm(term)
		switch {
		case err == nil:
			a.Disp += sign * n
		case sign < 0 || a.Symbol != "" || !isSymbol(term):
			return false
		default:
			a.Symbol = term
		}
	}
	return true
}

// parseTerm reads a number of up to 64 bits, with or without a sign of its own.
func parseTerm(s string) (int64, error) {
	if n, err := strconv.ParseInt(s, 0, 64); err == nil {
		return n, nil
	}
	n, err := strconv.ParseUint(s, 0, 64)
	return int64(n), err
}

// isSymbol reports whether a text can be a symbol's name. A name with an @ stands for an entry of a table,
// such as sym@GOTPCREL.
func isSymbol(s string) bool {
	return s != "" && (s[0] < '0' || s[0] > '9') && !strings.ContainsAny(s, "@%$(),: ")
}
