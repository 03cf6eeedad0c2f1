package lang

import (
	"math"
	"strings"
	"testing"
)

func TestParseInt(t *testing.T) {
	for _, row := range []struct {
		text string
		want uint64
	}{
		{"0", 0}, {"7", 7}, {"1_000_123", 1000123},
		{"0x10", 16}, {"0XfF", 255}, {"0xffff_ffff_ffff_ffff", math.MaxUint64},
		{"017", 15}, {"0123", 83}, {"00", 0},
		{"1e6", 1000000}, {"2E3", 2000}, {"9e18", 9e18}, {"1e0", 1}, {"3e2u", 300},
		{"18446744073709551615", math.MaxUint64},
		{"5u", 5}, {"5U", 5}, {"5UL", 5}, {"5ull", 5}, {"5l", 5}, {"5LL", 5}, {"9223372036854775807l", math.MaxInt64},
		{"5ns", 5}, {"5us", 5000}, {"5ms", 5e6}, {"5s", 5e9}, {"1m", 60e9}, {"2h", 7200e9}, {"1d", 86400e9},
	} {
		got, err := parseInt(row.text)
		if err != nil || got != row.want {
			t.Errorf("parseInt(%q) = %d, %v; want %d", row.text, got, err, row.want)
		}
	}
}

func TestParseIntRefuses(t *testing.T) {
	for _, row := range []struct{ text, want string }{
		{"", "no integer"}, {"x", "no integer"}, {"+1", "no integer"},
		{"1_", "underscore"}, {"0x", "hexadecimal"}, {"0xg", "hexadecimal"},
		{"08", "octal"}, {"0779", "octal"},
		{"5x", "suffix"}, {"5S", "suffix"}, {"5lu", "suffix"}, {"5Ms", "suffix"}, {"1e", "suffix"},
		{"18446744073709551616", "too large, the largest is 18446744073709551615"},
		{"0x1ffffffffffffffff", "too large"}, {"02000000000000000000000", "too large"},
		{"4294967296u", "the largest is 4294967295"}, {"9223372036854775808l", "too large"},
		{"18446744073709551616us", "too large"}, {"18446744073709552us", "the largest is 18446744073709551"},
		{"2e19", "too large"}, {"1e20", "too large"}, {"1e99999999999999999999", "too large"},
		{"10e3", "one digit"}, {"0e3", "one digit"},
	} {
		got, err := parseInt(row.text)
		if err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("parseInt(%q) = %d, %v; want an error with %q", row.text, got, err, row.want)
		}
	}
}
