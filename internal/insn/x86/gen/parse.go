package main

import (
	"fmt"
	"strconv"
	"strings"
)

// file is opcodes.txt, parsed.
type file struct {
	flags   []flagClass
	aliases map[string][]string // attributes that stand for several
	rows    []*row
}

// flagClass is a line "flags NAME ...": sets as Go expressions.
type flagClass struct{ name, read, must, may, undef string }

// row is one line after the expansion of its braces.
type row struct {
	where   string // file:line, for messages
	tab     string // constant of the map, such as tab0F
	opcodes []int
	conds   conds
	name    string
	ops     []string // Go expressions
	attrs   []string // Go constants
	imm     string
	flags   int
	branch  string
	scale   string
	elem    string
	reached bool
}

// conds restricts a row: for each decision the values it allows, as a bit set.
type conds map[string]uint

// restrict narrows what a decision allows.
func (c conds) restrict(by string, values uint) {
	if old, ok := c[by]; ok {
		values &= old
	}
	c[by] = values
}

// parse reads the whole text.
func parse(name, text string) (*file, error) {
	f := &file{flags: []flagClass{{name: "none"}}, aliases: map[string][]string{}}
	tab := ""
	for n, line := range strings.Split(text, "\n") {
		where := fmt.Sprintf("%s:%d", name, n+1)
		if k := strings.IndexByte(line, '#'); k >= 0 {
			line = line[:k]
		}
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		var err error
		switch words[0] {
		case "map":
			tab, err = mapName(words[1:])
		case "alias":
			f.aliases[words[1]] = words[2:]
		case "flags":
			err = f.addFlags(words[1:])
		default:
			err = f.addRows(where, tab, line)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", where, err)
		}
	}
	return f, nil
}

// mapName is the index constant of a map: its name, or base+number.
func mapName(words []string) (string, error) {
	if len(words) != 1 {
		return "", fmt.Errorf("map takes one name")
	}
	name, number, ok := strings.Cut(words[0], "-")
	tab, known := maps[name]
	if !known {
		return "", fmt.Errorf("unknown map %q", words[0])
	}
	if ok {
		tab += "+" + number
	}
	return tab, nil
}

var maps = map[string]string{
	"one": "tabOne", "0f": "tab0F", "0f38": "tab0F38", "0f3a": "tab0F3A", "3dnow": "tab3DNow",
	"rex2": "tabREX2", "vex": "tabVEX", "xop": "tabXOP", "evex": "tabEVEX",
}

// addFlags reads "NAME r=.. w=.. m=.. u=..".
func (f *file) addFlags(words []string) error {
	c := flagClass{name: words[0]}
	for _, w := range words[1:] {
		k, letters, _ := strings.Cut(w, "=")
		set, err := flagSet(letters)
		if err != nil {
			return err
		}
		switch k {
		case "r":
			c.read = set
		case "w":
			c.must = set
		case "m":
			c.may = set
		case "u":
			c.undef = set
		default:
			return fmt.Errorf("flags: %q is none of r, w, m, u", k)
		}
	}
	f.flags = append(f.flags, c)
	return nil
}

// flagSet turns letters into a Go expression.
func flagSet(letters string) (string, error) {
	if letters == "all" {
		return "AllFlags", nil
	}
	var out []string
	for _, l := range letters {
		n, ok := flagLetters[l]
		if !ok {
			return "", fmt.Errorf("unknown flag letter %q", l)
		}
		out = append(out, n)
	}
	return strings.Join(out, "|"), nil
}

var flagLetters = map[rune]string{
	'C': "CF", 'P': "PF", 'A': "AF", 'Z': "ZF", 'S': "SF", 'O': "OF", 'D': "DF",
	'T': "TF", 'I': "IF", 'K': "AC", 'X': "ID",
}

// addRows reads "opcode conditions : mnemonic operands ; attributes".
func (f *file) addRows(where, tab, line string) error {
	if tab == "" {
		return fmt.Errorf("row before the first map")
	}
	left, right, ok := strings.Cut(line, " : ")
	if !ok {
		return fmt.Errorf("row without a colon")
	}
	lines, err := expand(left, right)
	if err != nil {
		return err
	}
	for _, l := range lines {
		r := &row{where: where, tab: tab, conds: conds{}}
		if err := r.parse(f, l[0], l[1]); err != nil {
			return err
		}
		f.rows = append(f.rows, r)
	}
	return nil
}

// expand turns a row with one bracketed list on its left side and braces on its
// right side into one row for each element of the list.
func expand(left, right string) ([][2]string, error) {
	open, end := strings.IndexByte(left, '['), strings.IndexByte(left, ']')
	if open < 0 {
		return [][2]string{{left, right}}, nil
	}
	if end < open {
		return nil, fmt.Errorf("unbalanced brackets")
	}
	items, err := listItems(left[open+1 : end])
	if err != nil {
		return nil, err
	}
	var out [][2]string
	for k, item := range items {
		r, err := pick(right, k, len(items))
		if err != nil {
			return nil, err
		}
		out = append(out, [2]string{left[:open] + item + left[end+1:], r})
	}
	return out, nil
}

// listItems splits "np 66 f3" or "/0-7" or "40-47".
func listItems(s string) ([]string, error) {
	words := strings.Fields(s)
	if len(words) != 1 {
		return words, nil
	}
	lead := ""
	if s := words[0]; s[0] == '/' || s[0] == '@' {
		lead = s[:1]
	}
	var base int
	if lead == "" {
		base = 16
	} else {
		base = 8
	}
	values, err := ranges(words[0][len(lead):], base)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, v := range values {
		out = append(out, lead+strings.ToUpper(strconv.FormatInt(int64(v), base)))
	}
	return out, nil
}

// pick replaces each {a,b,...} by its k-th element.
func pick(s string, k, n int) (string, error) {
	var b strings.Builder
	for {
		open := strings.IndexByte(s, '{')
		if open < 0 {
			b.WriteString(s)
			return b.String(), nil
		}
		end := strings.IndexByte(s, '}')
		if end < open {
			return "", fmt.Errorf("unbalanced braces")
		}
		alt := strings.Split(s[open+1:end], ",")
		if len(alt) != n {
			return "", fmt.Errorf("{%s} has %d elements, the list %d", s[open+1:end], len(alt), n)
		}
		b.WriteString(s[:open] + alt[k])
		s = s[end+1:]
	}
}

// ranges reads "0-3,5" in the given base.
func ranges(s string, base int) ([]int, error) {
	var out []int
	for _, part := range strings.Split(s, ",") {
		lo, hi, ok := strings.Cut(part, "-")
		if !ok {
			hi = lo
		}
		a, err := strconv.ParseUint(lo, base, 8)
		if err != nil {
			return nil, err
		}
		b, err := strconv.ParseUint(hi, base, 8)
		if err != nil {
			return nil, err
		}
		for v := a; v <= b; v++ {
			out = append(out, int(v))
		}
	}
	return out, nil
}
