package lang

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"strings"
)

// suffixes of integer literals: the largest value before the unit is applied,
// and the unit. Those of C bound the value and have no other meaning; those of
// time make nanoseconds.
var suffixes = map[string]struct{ limit, unit uint64 }{
	"":    {math.MaxUint64, 1},
	"u":   {math.MaxUint32, 1},
	"ul":  {math.MaxUint64, 1},
	"ull": {math.MaxUint64, 1},
	"l":   {math.MaxInt64, 1},
	"ll":  {math.MaxInt64, 1},
	"ns":  {math.MaxUint64, 1},
	"us":  {math.MaxUint64, 1e3},
	"ms":  {math.MaxUint64, 1e6},
	"s":   {math.MaxUint64, 1e9},
	"m":   {math.MaxUint64, 60e9},
	"h":   {math.MaxUint64, 3600e9},
	"d":   {math.MaxUint64, 86400e9},
}

// parseInt reads an integer literal: decimal, 0x hexadecimal, 0 octal, or
// <digit>e<exponent>; with '_' between digits, and a suffix of C or of time.
func parseInt(text string) (uint64, error) {
	if text == "" || !isDigit(text[0]) {
		return 0, fmt.Errorf("'%s' is no integer", text)
	}
	if strings.HasSuffix(text, "_") {
		return 0, errors.New("underscore at the end of an integer")
	}
	s := strings.ReplaceAll(text, "_", "")
	if len(s) >= 2 && (s[:2] == "0x" || s[:2] == "0X") {
		// Letters belong to the digits: a suffix of C or of time would not be
		// told from them, so there is none.
		v, rest, err := digits(s[2:], 16)
		switch {
		case err != nil:
			return 0, err
		case rest != "" || len(s) == 2:
			return 0, fmt.Errorf("invalid hexadecimal integer '%s'", text)
		}
		return v, nil
	}
	base := uint64(10)
	if len(s) >= 2 && s[0] == '0' && isDigit(s[1]) {
		base = 8
	}
	v, rest, err := digits(s, base)
	if err == nil && len(rest) >= 2 && rest[0]|0x20 == 'e' && isDigit(rest[1]) {
		v, rest, err = exponent(v, rest[1:])
	}
	if err != nil {
		return 0, err
	}
	return withSuffix(v, rest, base)
}

func withSuffix(v uint64, rest string, base uint64) (uint64, error) {
	if base == 8 && rest != "" && isDigit(rest[0]) {
		return 0, errors.New("digit 8 or 9 in an octal integer (the leading 0 makes it octal)")
	}
	suffix := rest
	if c := strings.ToLower(rest); strings.Trim(c, "ul") == "" {
		suffix = c
	}
	unit, ok := suffixes[suffix]
	if !ok {
		return 0, fmt.Errorf("invalid integer suffix '%s'", rest)
	}
	high, low := bits.Mul64(v, unit.unit)
	if v > unit.limit || high != 0 {
		return 0, errTooLarge(unit.limit / unit.unit)
	}
	return low, nil
}

func errTooLarge(limit uint64) error {
	return fmt.Errorf("integer is too large, the largest is %d", limit)
}

// digits reads digits of a base and returns what follows them.
func digits(s string, base uint64) (v uint64, rest string, err error) {
	for i := 0; i < len(s); i++ {
		d := hexDigit(s[i])
		if d < 0 || uint64(d) >= base {
			return v, s[i:], err
		}
		high, low := bits.Mul64(v, base)
		sum, carry := bits.Add64(low, uint64(d), 0)
		if high != 0 || carry != 0 {
			err = errTooLarge(math.MaxUint64)
		}
		v = sum
	}
	return v, "", err
}

// exponent multiplies by the power of ten that s starts with.
func exponent(v uint64, s string) (uint64, string, error) {
	if v < 1 || v > 9 {
		return 0, "", errors.New("the part before 'e' must be one digit from 1 to 9")
	}
	e, rest, err := digits(s, 10)
	if err != nil || e > 19 {
		return 0, "", errTooLarge(math.MaxUint64)
	}
	for ; e > 0; e-- {
		high, low := bits.Mul64(v, 10)
		if high != 0 {
			return 0, "", errTooLarge(math.MaxUint64)
		}
		v = low
	}
	return v, rest, nil
}
