package bpf

import "testing"

func TestFormatTrace(t *testing.T) {
	for _, c := range []struct {
		format string
		args   []uint64
		want   string
	}{
		{"nothing\n", nil, "nothing\n"},
		{"%d %u %i", []uint64{neg(1), neg(1), 5}, "-1 4294967295 5"},
		{"%ld %llu %lx", []uint64{neg(1), neg(1), 255}, "-1 18446744073709551615 ff"},
		{"%5d|%-5d|%05d|%#x", []uint64{1, 2, 3, 4}, "    1|2    |00003|0x4"},
		{"%c%c %X %o 100%%", []uint64{'a', 'b', 0xbeef, 8}, "ab BEEF 10 100%"},
		{"%p %s", []uint64{0x1000, 0x2000}, "0x1000 0x2000"},
		{"%d %d", []uint64{1}, "1 %d"},
		{"ends in %", nil, "ends in %"},
		{"ends in %-5l", []uint64{1}, "ends in %-5l"},
		{"cut\x00here", nil, "cut"},
	} {
		if got, err := FormatTrace(tracePayload([]byte(c.format), c.args)); err != nil || got != c.want {
			t.Errorf("%q of %v: %q, %v, not %q", c.format, c.args, got, err, c.want)
		}
	}
	for _, payload := range [][]byte{nil, {1, 0, 0, 0}, {1, 0, 0, 0, 1, 0, 0, 0, 'x'}, {0, 0, 0, 0, 255, 255, 255, 255}} {
		if got, err := FormatTrace(payload); err == nil {
			t.Errorf("%x is %q", payload, got)
		}
	}
}

// FuzzFormatTrace: what a target wrote into its ring may be anything.
func FuzzFormatTrace(f *testing.F) {
	f.Add(tracePayload([]byte("%d %5lx"), []uint64{1, 2}))
	f.Fuzz(func(t *testing.T, b []byte) { FormatTrace(b) })
}
