package lang

import (
	"math"
	"testing"
)

var flexible8 = literalType(1)

func TestLiteralTypes(t *testing.T) {
	for _, row := range []struct {
		u    uint64
		want string
	}{
		{0, "int8"}, {127, "int8"}, {128, "int16"}, {32767, "int16"}, {32768, "int32"}, {1<<31 - 1, "int32"},
		{1 << 31, "int64"}, {math.MaxInt64, "int64"}, {1 << 63, "uint64"},
	} {
		if got := literalType(row.u); got.String() != row.want || got.flexible != (row.want != "uint64") {
			t.Errorf("%d is a %v", row.u, got)
		}
	}
	for _, row := range []struct {
		v    int64
		want string
	}{{-1, "int8"}, {-128, "int8"}, {-129, "int16"}, {-32769, "int32"}, {-1<<31 - 1, "int64"}, {math.MinInt64, "int64"}} {
		if got := negativeType(row.v); got.String() != row.want || got.flexible {
			t.Errorf("%d is a %v", row.v, got)
		}
	}
}

func TestPromote(t *testing.T) {
	i := func(size uint8) Type { return intType(size, true) }
	u := func(size uint8) Type { return intType(size, false) }
	for _, row := range []struct {
		a, b Type
		want string
	}{
		{i(1), i(4), "int32"}, {u(2), u(1), "uint16"},
		{i(1), u(1), "int16"}, {i(1), u(4), "int64"}, {i(8), u(4), "int64"}, {i(4), u(1), "int32"}, {i(8), u(8), "int64"}, {i(1), u(8), "int64"},
		{flexible8, u(8), "uint64"}, {flexible8, u(1), "uint8"}, {flexible8, i(4), "int32"}, {literalType(300), u(1), "uint16"},
		{flexible8, literalType(300), "int16"}, {boolType, boolType, "bool"}, {stringType, stringType, "string"},
		{badType, u(4), "uint32"},
	} {
		for _, pair := range [][2]Type{{row.a, row.b}, {row.b, row.a}} {
			if got, ok := promote(pair[0], pair[1]); !ok || got.String() != row.want {
				t.Errorf("%v and %v: %v, %v; want %s", pair[0], pair[1], got, ok, row.want)
			}
		}
	}
	if got, _ := promote(flexible8, literalType(300)); !got.flexible {
		t.Error("two literals make no literal")
	}
	for _, pair := range [][2]Type{{i(1), boolType}, {stringType, u(8)}, {boolType, stringType}} {
		if got, ok := promote(pair[0], pair[1]); ok {
			t.Errorf("%v and %v: %v", pair[0], pair[1], got)
		}
	}
}

func TestFits(t *testing.T) {
	for _, row := range []struct {
		a, b Type
		want bool
	}{
		{intType(1, true), intType(2, true), true}, {intType(2, true), intType(1, true), false},
		{intType(4, false), intType(8, true), true}, {intType(8, false), intType(8, true), false},
		{intType(1, true), intType(8, false), false}, {flexible8, intType(1, false), true},
		{boolType, intType(8, false), false}, {badType, boolType, true},
	} {
		if got := row.a.fits(row.b); got != row.want {
			t.Errorf("%v fits %v: %v", row.a, row.b, got)
		}
	}
}

func TestTruncate(t *testing.T) {
	for _, row := range []struct {
		t    Type
		v, w uint64
	}{
		{intType(1, true), 0x80, 0xffffffffffffff80}, {intType(1, false), 0x1ff, 0xff},
		{intType(2, true), 0x7fff, 0x7fff}, {intType(4, false), 1<<40 | 5, 5}, {intType(4, true), 1 << 31, 0xffffffff80000000},
		{uint64Type, math.MaxUint64, math.MaxUint64}, {boolType, 6, 1}, {boolType, 0, 0},
	} {
		if got := row.t.truncate(row.v); got != row.w {
			t.Errorf("%v of %#x is %#x", row.t, row.v, got)
		}
	}
}
