package x86

import (
	"fmt"
	"math/rand"
	"os"
	"sort"
	"testing"
)

// long reports whether tests take all cases instead of a sample: set
// TRAPLESS_LONG=1, and allow for ten minutes.
func long() bool { return os.Getenv("TRAPLESS_LONG") != "" }

// judge compares answers and collects what it did not expect.
type judge struct {
	t          *testing.T
	unexpected map[string]string // first example of each
	expected   map[string]int    // known differences by reason
	valid      int
}

func newJudge(t *testing.T) *judge {
	return &judge{t: t, unexpected: map[string]string{}, expected: map[string]int{}}
}

func (j *judge) check(q *question, a *answer) {
	i, err := Decode(q.code(), q.mode())
	if err == nil && a.Status == 0 {
		j.valid++
	}
	for _, what := range differences(q, &i, err, a) {
		if why := known(what, q, &i, err, a); why != "" {
			j.expected[why]++
			continue
		}
		key := fmt.Sprintf("%s: %q here, %q in Zydis", what, i.Mnemonic(), a.mnemonic())
		if _, seen := j.unexpected[key]; !seen {
			j.unexpected[key] = fmt.Sprintf("mode %d, % x: length %d, %v; Zydis: length %d, %v", q.Mode, q.code(), i.Len, i.Effects(), a.Len, a)
		}
	}
}

// report fails the test for each kind of unexpected difference.
func (j *judge) report(asked int) {
	keys := make([]string, 0, len(j.unexpected))
	for k := range j.unexpected {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	for n, k := range keys {
		if n == 60 {
			j.t.Errorf("and %d more kinds", len(keys)-n)
			break
		}
		j.t.Errorf("%s\n\t%s", k, j.unexpected[k])
	}
	for why, n := range j.expected {
		j.t.Logf("known: %s: %d", why, n)
	}
	j.t.Logf("%d asked, %d valid", asked, j.valid)
}

// opcodeCases are the ways to walk all opcodes. Each calls yield with 15 bytes.
var opcodeCases = []struct {
	name   string
	sample int // one of so many is taken, but in a long run
	walk   func(r *rand.Rand, m Mode, yield func([]byte))
}{
	{"legacy", 12, walkLegacy},
	{"vex", 12, walkVEX},
	{"evex", 6, walkEVEX},
}

// TestOpcodesByZydis walks every map, opcode and ModRM byte, with the prefixes
// that matter, and compares all that Decode and Effects say with Zydis.
func TestOpcodesByZydis(t *testing.T) {
	for _, m := range []Mode{Mode64, Mode32} {
		for _, c := range opcodeCases {
			t.Run(fmt.Sprintf("%s%d", c.name, 64>>uint(m)), func(t *testing.T) {
				j := newJudge(t)
				z := startZydis(t, j.check)
				r := rand.New(rand.NewSource(1))
				pick := rand.New(rand.NewSource(2))
				c.walk(r, m, func(b []byte) {
					if long() || pick.Intn(c.sample) == 0 {
						z.ask(t, m, b)
					}
				})
				z.flush(t)
				j.report(z.asked)
			})
		}
	}
}

// pad fills up to 15 bytes at random.
func pad(r *rand.Rand, b []byte) []byte {
	for len(b) < MaxLen {
		b = append(b, byte(r.Intn(256)))
	}
	return b[:MaxLen]
}

var prefixes64 = []string{"", "\x66", "\xf3", "\xf2", "\x66\xf3", "\x66\xf2", "\xf0", "\x67", "\x40", "\x48", "\x41", "\x44", "\x4f",
	"\xf3\x48", "\x66\x48", "\xf2\x48", "\xf0\xf3", "\xf0\x66", "\xf0\x48", "\x48\x66", "\xf2\xf3", "\xf3\xf2", "\x64\x67\x4c"}

var prefixes32 = []string{"", "\x66", "\xf3", "\xf2", "\x67", "\x66\x67", "\xf0", "\x66\xf2", "\x2e\x67"}

func walkLegacy(r *rand.Rand, m Mode, yield func([]byte)) {
	prefixes := prefixes64
	if m == Mode32 {
		prefixes = prefixes32
	}
	for _, p := range prefixes {
		for _, escape := range []string{"", "\x0f", "\x0f\x38", "\x0f\x3a"} {
			for n := range 1 << 16 {
				b := append([]byte(p+escape), byte(n>>8), byte(n))
				yield(pad(r, b))
			}
		}
	}
}

// walkVEX takes VEX and XOP: three bytes, vvvv all ones half of the time.
func walkVEX(r *rand.Rand, m Mode, yield func([]byte)) {
	for n := range 11 << 20 {
		mp, w, l, pp := n>>20, n>>19&1, n>>18&1, n>>16&3
		first, p0, v := byte(0xc4), byte(0xe0|mp), byte(0x78)
		if mp >= 8 {
			first = 0x8f
		}
		if r.Intn(2) == 0 {
			p0 ^= byte(r.Intn(8) << 5)
		}
		if m == Mode32 {
			p0 |= 0xc0
		}
		if r.Intn(2) == 0 {
			v = byte(r.Intn(16) << 3)
		}
		yield(pad(r, []byte{first, p0, byte(w<<7|l<<2|pp) | v, byte(n >> 8), byte(n)}))
	}
}

// walkEVEX takes every map, W, L'L, pp and opcode with 64 choices of the rest.
func walkEVEX(r *rand.Rand, m Mode, yield func([]byte)) {
	mods := [8]byte{0, 0x40, 0x80, 0xc0, 0xc0, 0, 0x40, 0xc0}
	for n := range 8 << 19 {
		mp, w, l, pp := n>>19, n>>18&1, n>>16&3, n>>14&3
		p0, v, p2 := byte(0xf0|mp), byte(0x7c), byte(l<<5|8)
		if r.Intn(2) == 0 {
			p0 ^= byte(r.Intn(16) << 4)
		}
		if m == Mode32 {
			p0 |= 0xc0
		}
		if r.Intn(2) == 0 {
			v = byte(r.Intn(16)<<3) | 4
		}
		p2 ^= byte(r.Intn(2)<<3 | r.Intn(2)<<4)
		switch r.Intn(3) {
		case 0:
			p2 |= byte(r.Intn(8))
		case 1:
			p2 |= 0x80 | byte(r.Intn(8))
		}
		modrm := mods[n>>3&7] | byte(n&7)<<3 | byte(r.Intn(8))
		yield(pad(r, []byte{0x62, p0, byte(w<<7|pp) | v, p2, byte(n >> 6), modrm}))
	}
}
