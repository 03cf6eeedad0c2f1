package text

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"trapless/internal/arena"
	"trapless/internal/lang"
)

func compile(t testing.TB, src string) *lang.Script {
	t.Helper()
	s, err := lang.Compile(src, "test", lang.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// event decodes an event of the script's first action.
func event(t testing.TB, s *lang.Script, words ...uint64) (*lang.Action, []lang.Value) {
	t.Helper()
	payload := make([]byte, 8)
	for _, w := range words {
		for i := range 8 {
			payload = append(payload, byte(w>>(8*i)))
		}
	}
	a, values, err := s.Event(payload)
	if err != nil {
		t.Fatal(err)
	}
	return a, values
}

// TestPrintf prints arg0, which is 0x12345678abcdef, or the given value.
func TestPrintf(t *testing.T) {
	for _, row := range []struct{ args, want string }{
		{`"%hhx %hx %x %jx", arg0, arg0, arg0, arg0`, "ef cdef 78abcdef 12345678abcdef"},
		{`"%d %ld %lld", arg0, arg0, arg0`, "2024525295 5124095577148911 5124095577148911"},
		{`"%d %ld %lu", (int64)arg1, (int64)arg1, arg1`, "-2 -2 18446744073709551614"},
		{`"%u %hhd %hu", arg1, arg1, arg1`, "4294967294 -2 65534"},
		{`"[%5d|%-5d|%05d|%+d|%+d]", 42, 42, 42, 42, -42`, "[   42|42   |00042|+42|-42]"},
		{`"[%05d|%-05d|%#06x]", -3, 3, 255`, "[000-3|30000|000xff]"},
		{`"%#x %#o %#X %#x", 255, 8, 255, 0`, "0xff 010 0XFF 0"},
		{`"%x %X %o", 255, 255, 8`, "ff FF 10"},
		{`"%p %p %20p", arg0, 0, 16`, "0x12345678abcdef 0                 0x10"},
		{`"%c%c%c%c|%3c", 0x41, 0x42, 0x43, 0x144, 65`, "ABCD|  A"},
		{`"%s %s %s %s", "str", 5, -5, arg0 > 1`, "str 5 -5 true"},
		{`"[%6s|%-6s|%.2s]", "abc", "abc", "abc"`, "[   abc|abc   |abc]"},
		{`"%d %d", arg0 > 1, arg0 < 1`, "1 0"},
		{`"%s", arg0`, "5124095577148911"},
		{`"%s", arg1`, "18446744073709551614"},
		{`"100%% %d%%", 5`, "100% 5%"},
		{`"50%, %y"`, "50%, %y"},
		{`"value: %dms100\n", 100`, "value: 100ms100\n"},
		{`"a\tb\n"`, "a\tb\n"},
		{`"%5s %04x", "ba", 2`, "   ba 0002"},
		{`"%i", 7`, "7"},
	} {
		s := compile(t, "uprobe:a:f { printf("+row.args+") }")
		args := []uint64{0x12345678abcdef, ^uint64(1)}
		var words []uint64
		for _, a := range s.Actions[0].Args {
			if a.Const {
				continue
			}
			words = append(words, args[0])
			if strings.Contains(row.args, "arg1") {
				words[len(words)-1] = args[1]
			}
			if a.Value.Type.Kind == lang.Bool {
				words[len(words)-1] = 1
				if len(words) > 1 {
					words[len(words)-1] = 0
				}
			}
		}
		a, values := event(t, s, words...)
		var b bytes.Buffer
		if err := Printf(&b, a, values); err != nil || b.String() != row.want {
			t.Errorf("printf(%s)\ngot  %q, %v\nwant %q", row.args, b.String(), err, row.want)
		}
	}
}

func TestPrintValue(t *testing.T) {
	for _, row := range []struct{ expr, text, json string }{
		{"5", "5", `{"type": "value", "data": 5}`},
		{"-5", "-5", `{"type": "value", "data": -5}`},
		{"0xffffffffffffffff", "18446744073709551615", `{"type": "value", "data": "18446744073709551615"}`},
		{"0x8000000000000000", "9223372036854775808", `{"type": "value", "data": 9223372036854775808}`},
		{"9007199254740993", "9007199254740993", `{"type": "value", "data": "9007199254740993"}`},
		{"-9223372036854775808", "-9223372036854775808", `{"type": "value", "data": -9223372036854775808}`},
		{"9223372036854775807", "9223372036854775807", `{"type": "value", "data": "9223372036854775807"}`},
		{"true", "true", `{"type": "value", "data": true}`},
		{`"a\"b\n"`, "a\"b\n", `{"type": "value", "data": "a\"b\n"}`},
	} {
		s := compile(t, "begin { print("+row.expr+") }")
		a, values := event(t, s)
		var b, j strings.Builder
		Printf(&b, a, values)
		JSON{W: &j}.Printf(a, values)
		if b.String() != row.text+"\n" || j.String() != row.json+"\n" {
			t.Errorf("print(%s): %q, %q", row.expr, b.String(), j.String())
		}
	}
}

func TestJSONPrintf(t *testing.T) {
	s := compile(t, `begin { printf("test \r \n \t \\ \" \x01 \xff é %d", 5) }`)
	a, values := event(t, s)
	var b strings.Builder
	JSON{W: &b}.Printf(a, values)
	want := `{"type": "printf", "data": "test \r \n \t \\ \" \u0001 ` + "�" + ` é 5"}` + "\n"
	if b.String() != want || !json.Valid([]byte(b.String())) {
		t.Errorf("got  %s\nwant %s", b.String(), want)
	}
}

func entry(value []uint64, key ...uint64) arena.Entry { return arena.Entry{Key: key, Value: value} }

func TestPrintMap(t *testing.T) {
	minus := func(n uint64) uint64 { return -n }
	keyed := []arena.Entry{entry([]uint64{30}, 7), entry([]uint64{10}, 3), entry([]uint64{20}, 5), entry([]uint64{10}, 1)}
	for _, row := range []struct {
		name, src string
		entries   []arena.Entry
		top, div  uint32
		text      string
		json      string
	}{
		{"no keys", "@ = count()", []arena.Entry{entry([]uint64{5})}, 0, 1, "@: 5\n", `{"@": 5}`},
		{"no keys, by name", "@calls = count()", []arena.Entry{entry([]uint64{5})}, 3, 2, "@calls: 2\n", `{"@calls": 2}`},
		{"no keys, empty", "@ = count()", nil, 0, 1, "@: 0\n", `{"@": 0}`},
		{"no keys, empty, at the end", "@ = count()", nil, 0, 0, "", ""},
		{"no keys, sum", "@ = sum(-1)", []arena.Entry{entry([]uint64{3, minus(60)})}, 0, 0, "@: -60\n", `{"@": -60}`},
		{"one key", "@x[arg0] = count()", keyed, 0, 0, "@x[1]: 10\n@x[3]: 10\n@x[5]: 20\n@x[7]: 30\n", `{"@x": {"1": 10, "3": 10, "5": 20, "7": 30}}`},
		{"one key, empty", "@x[arg0] = count()", nil, 0, 1, "", ""},
		{"the largest two", "@x[arg0] = count()", keyed, 2, 1, "@x[5]: 20\n@x[7]: 30\n", `{"@x": {"5": 20, "7": 30}}`},
		{"more than there are", "@x[arg0] = count()", keyed[:1], 10, 1, "@x[7]: 30\n", `{"@x": {"7": 30}}`},
		{"divided", "@x[arg0] = count()", keyed, 1, 7, "@x[7]: 4\n", `{"@x": {"7": 4}}`},
		{"several keys", "@x[arg0, (int32)arg1] = count()", []arena.Entry{entry([]uint64{3}, 1, minus(2))}, 0, 0, "@x[1, -2]: 3\n", `{"@x": {"1,-2": 3}}`},
		{"truth as a key", "@x[arg0 > 1] = count()", []arena.Entry{entry([]uint64{3}, 1), entry([]uint64{2}, 0)}, 0, 0,
			"@x[false]: 2\n@x[true]: 3\n", `{"@x": {"false": 2, "true": 3}}`},
		{"signed keys with equal values", "@x[(int8)arg0] = count()",
			[]arena.Entry{entry([]uint64{1}, 2), entry([]uint64{1}, minus(1)), entry([]uint64{1}, 0)}, 0, 0,
			"@x[-1]: 1\n@x[0]: 1\n@x[2]: 1\n", `{"@x": {"-1": 1, "0": 1, "2": 1}}`},
		{"signed sums", "@x[arg0] = sum((int64)arg1)",
			[]arena.Entry{entry([]uint64{1, 5}, 1), entry([]uint64{1, minus(7)}, 2), entry([]uint64{1, 0}, 3)}, 0, 2,
			"@x[2]: -3\n@x[3]: 0\n@x[1]: 2\n", `{"@x": {"2": -3, "3": 0, "1": 2}}`},
		{"unsigned sums", "@x[arg0] = sum(arg1)", []arena.Entry{entry([]uint64{1, minus(7)}, 2), entry([]uint64{1, 9}, 3)}, 0, 0,
			"@x[3]: 9\n@x[2]: 18446744073709551609\n", `{"@x": {"3": 9, "2": "18446744073709551609"}}`},
		{"large key", "@x[arg0] = count()", []arena.Entry{entry([]uint64{1}, minus(1))}, 0, 0,
			"@x[18446744073709551615]: 1\n", `{"@x": {"18446744073709551615": 1}}`},
	} {
		m := &compile(t, "uprobe:a:f { "+row.src+" }").Maps[0]
		var b, j strings.Builder
		PrintMap(&b, m, row.entries, row.top, row.div)
		JSON{W: &j}.PrintMap(m, row.entries, row.top, row.div)
		wantJSON := ""
		if row.json != "" {
			wantJSON = `{"type": "map", "data": ` + row.json + "}\n"
		}
		if b.String() != row.text {
			t.Errorf("%s: got\n%swant\n%s", row.name, b.String(), row.text)
		}
		if j.String() != wantJSON || wantJSON != "" && !json.Valid([]byte(wantJSON)) {
			t.Errorf("%s: got\n%swant\n%s", row.name, j.String(), wantJSON)
		}
	}
}

func TestPrintMapKeepsTheOrderOfItsInput(t *testing.T) {
	m := &compile(t, "begin { @[1] = count() }").Maps[0]
	in := []arena.Entry{entry([]uint64{2}, 1), entry([]uint64{1}, 2)}
	PrintMap(&strings.Builder{}, m, in, 0, 0)
	if in[0].Value[0] != 2 {
		t.Error("the caller's entries were sorted")
	}
}

// TestStreams compares random conversions with C++ streams.
func TestStreams(t *testing.T) {
	exe := filepath.Join(t.TempDir(), "stream")
	if out, err := exec.Command("g++", "-O1", "-o", exe, "testdata/stream.cc").CombinedOutput(); err != nil {
		t.Skipf("no C++ compiler to build the oracle with: %v\n%s", err, out)
	}
	r := rand.New(rand.NewPCG(1, 2))
	pick := func(s ...string) string { return s[r.IntN(len(s))] }
	var input strings.Builder
	var want []string
	for range 20000 {
		c := lang.Conversion{Left: r.IntN(2) == 0, Plus: r.IntN(2) == 0, Alt: r.IntN(2) == 0, Zero: r.IntN(2) == 0,
			Width: r.IntN(30), Length: pick("hh", "h", "l", "ll", "j", "z", "t", "-"), Verb: pick("d", "i", "u", "o", "x", "X", "c", "p", "s")}
		v := lang.Value{Type: lang.Type{Kind: lang.Int, Size: 8, Signed: r.IntN(2) == 0}, Int: r.Uint64() >> r.IntN(64)}
		if r.IntN(3) == 0 {
			v.Int = -v.Int
		}
		if r.IntN(20) == 0 {
			v.Int = 0
		}
		fmt.Fprintf(&input, "%d %d %d %d %d %s %s %d %d\n", bit(c.Left), bit(c.Plus), bit(c.Alt), bit(c.Zero), c.Width, c.Length, c.Verb, bit(v.Type.Signed), v.Int)
		want = append(want, hex.EncodeToString([]byte(convert(c, v))))
	}
	cmd := exec.Command(exe)
	cmd.Stdin = strings.NewReader(input.String())
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	in, got := strings.Split(input.String(), "\n"), strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(got) != len(want) {
		t.Fatalf("%d results for %d conversions", len(got), len(want))
	}
	for i := range want {
		if got[i] != want[i] {
			mine, _ := hex.DecodeString(want[i])
			theirs, _ := hex.DecodeString(got[i])
			t.Fatalf("%s: %q, by streams %q", in[i], mine, theirs)
		}
	}
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}
