package text

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"trapless/internal/arena"
	"trapless/internal/lang"
)

// cells makes the entry of a map of hist() or lhist() that has counted values.
func cells(m *lang.Map, values []int64, key ...uint64) arena.Entry {
	cell := make([]uint64, m.Buckets.Count())
	for _, v := range values {
		cell[m.Buckets.Of(v)]++
	}
	return entry(cell, key...)
}

func bar(n int) string { return "|" + strings.Repeat("@", n) + strings.Repeat(" ", barWidth-n) + "|" }

// TestHistograms: intervals as bpftrace prints them, counts, lengths of bars.
func TestHistograms(t *testing.T) {
	for _, row := range []struct {
		call   string
		values []int64
		div    uint32
		text   []string // "interval count bar"
		json   string
	}{
		{"hist(1)", []int64{-1, 2, 3, 7, 20}, 0,
			[]string{"(..., 0) 1 26", "[0] 0 0", "[1] 0 0", "[2, 4) 2 52", "[4, 8) 1 26", "[8, 16) 0 0", "[16, 32) 1 26"},
			`[{"max": -1, "count": 1},{"min": 0, "max": 0, "count": 0},{"min": 1, "max": 1, "count": 0},{"min": 2, "max": 3, "count": 2},` +
				`{"min": 4, "max": 7, "count": 1},{"min": 8, "max": 15, "count": 0},{"min": 16, "max": 31, "count": 1}]`},
		{"hist(1)", []int64{0, 0, 0, 1}, 0, []string{"[0] 3 52", "[1] 1 17"}, `[{"min": 0, "max": 0, "count": 3},{"min": 1, "max": 1, "count": 1}]`},
		{"hist(1)", []int64{5, 5, 5, 9}, 2, []string{"[4, 8) 1 52", "[8, 16) 0 0"}, `[{"min": 4, "max": 7, "count": 1},{"min": 8, "max": 15, "count": 0}]`},
		{"hist(1)", []int64{1023, 1024}, 1, []string{"[512, 1K) 1 52", "[1K, 2K) 1 52"}, `[{"min": 512, "max": 1023, "count": 1},{"min": 1024, "max": 2047, "count": 1}]`},
		{"hist(1)", []int64{10 << 30}, 1, []string{"[8G, 16G) 1 52"}, `[{"min": 8589934592, "max": 17179869183, "count": 1}]`},
		{"hist(1)", []int64{1<<63 - 1}, 1, []string{"[4E, 8E) 1 52"}, `[{"min": 4611686018427387904, "max": "9223372036854775807", "count": 1}]`},
		{"hist(1, 2)", []int64{3, 9, 10, 225}, 1, []string{"[3] 1 52", "[4] 0 0", "[5] 0 0", "[6] 0 0", "[7] 0 0", "[8, 10) 1 52", "[10, 12) 1 52",
			"[12, 14) 0 0", "[14, 16) 0 0", "[16, 20) 0 0", "[20, 24) 0 0", "[24, 28) 0 0", "[28, 32) 0 0", "[32, 40) 0 0", "[40, 48) 0 0", "[48, 56) 0 0",
			"[56, 64) 0 0", "[64, 80) 0 0", "[80, 96) 0 0", "[96, 112) 0 0", "[112, 128) 0 0", "[128, 160) 0 0", "[160, 192) 0 0", "[192, 224) 0 0", "[224, 256) 1 52"}, ""},
		{"lhist(1, 0, 10, 2)", []int64{2, 3, 7, -1, 11}, 1,
			[]string{"(..., 0) 1 26", "[0, 2) 0 0", "[2, 4) 2 52", "[4, 6) 0 0", "[6, 8) 1 26", "[8, 10) 0 0", "[10, ...) 1 26"},
			`[{"max": -1, "count": 1},{"min": 0, "max": 1, "count": 0},{"min": 2, "max": 3, "count": 2},{"min": 4, "max": 5, "count": 0},` +
				`{"min": 6, "max": 7, "count": 1},{"min": 8, "max": 9, "count": 0},{"min": 10, "count": 1}]`},
		{"lhist(1, 0, 10, 1)", []int64{3, 4, 4}, 5, []string{"[3] 1 26", "[4] 2 52"}, `[{"min": 3, "max": 3, "count": 1},{"min": 4, "max": 4, "count": 2}]`},
		{"lhist(1, 0, 10, 2)", []int64{20}, 1, []string{"[10, ...) 1 52"}, `[{"min": 10, "count": 1}]`},
		{"lhist(1, 0, 4194304, 524288)", []int64{0, 1 << 20}, 1, []string{"[0, 512K) 1 52", "[512K, 1M) 0 0", "[1M, 1536K) 1 52"}, ""},
		{"hist(1)", nil, 1, nil, ""},
	} {
		m := &compile(t, "begin { @ = "+row.call+" }").Maps[0]
		var b, j strings.Builder
		var in []arena.Entry
		if row.values != nil {
			in = []arena.Entry{cells(m, row.values)}
		}
		PrintMap(&b, m, in, 0, row.div)
		JSON{W: &j}.PrintMap(m, in, 0, row.div)
		want := ""
		for _, line := range row.text {
			i := strings.LastIndex(line[:strings.LastIndex(line, " ")], " ")
			var n, length int
			fmt.Sscan(line[i:], &n, &length)
			want += fmt.Sprintf("%-16s%8d %s\n", line[:i], n, bar(length))
		}
		if want != "" {
			want = "@:\n" + want + "\n"
		}
		if b.String() != want {
			t.Errorf("%s of %d: got\n%swant\n%s", row.call, row.values, b.String(), want)
		}
		if want := `{"type": "hist", "data": {"@": ` + row.json + "}}\n"; row.json != "" && (j.String() != want || !json.Valid([]byte(want))) {
			t.Errorf("%s of %d: got\n%swant\n%s", row.call, row.values, j.String(), want)
		}
	}
}

func TestKeyedHistograms(t *testing.T) {
	m := &compile(t, "begin { @x[1, 2] = hist(1) }").Maps[0]
	in := []arena.Entry{cells(m, []int64{1, 1}, 5, 6), cells(m, []int64{1}, 3, 4), cells(m, []int64{1, 1, 1}, 1, 2)}
	var b, j strings.Builder
	PrintMap(&b, m, in, 2, 1)
	JSON{W: &j}.PrintMap(m, in, 2, 1)
	line := func(n int) string { return fmt.Sprintf("[1]%21d %s\n\n", n, bar(52)) }
	if want := "@x[5, 6]:\n" + line(2) + "@x[1, 2]:\n" + line(3); b.String() != want {
		t.Errorf("got\n%swant\n%s", b.String(), want)
	}
	if want := `{"type": "hist", "data": {"@x": {"5,6": [{"min": 1, "max": 1, "count": 2}], "1,2": [{"min": 1, "max": 1, "count": 3}]}}}` + "\n"; j.String() != want {
		t.Errorf("got\n%swant\n%s", j.String(), want)
	}
}

func TestPrintStatistics(t *testing.T) {
	minus := func(n uint64) uint64 { return -n }
	const top = 1 << 63
	for _, row := range []struct {
		src     string
		entries []arena.Entry
		div     uint32
		text    string
		json    string
	}{
		{"@ = avg(arg0)", []arena.Entry{entry([]uint64{3, 7})}, 1, "@: 2\n", `{"type": "stats", "data": {"@": 2}}`},
		{"@ = avg((int64)arg0)", []arena.Entry{entry([]uint64{2, minus(7)})}, 1, "@: -3\n", `{"type": "stats", "data": {"@": -3}}`},
		{"@ = stats(arg0)", []arena.Entry{entry([]uint64{3, 60})}, 10, "@: { .count = 3, .average = 2, .total = 60 }\n",
			`{"type": "stats", "data": {"@": {"count": 3, "average": 2, "total": 60}}}`},
		{"@ = stats(arg0)", nil, 1, "@: { .count = 0, .average = 0, .total = 0 }\n", `{"type": "stats", "data": {"@": {"count": 0, "average": 0, "total": 0}}}`},
		{"@ = stats(arg0)", nil, 0, "", ""},
		{"@[arg1] = stats(arg0)", []arena.Entry{entry([]uint64{1, 60}, 1), entry([]uint64{3, 60}, 2)}, 0,
			"@[2]: { .count = 3, .average = 20, .total = 60 }\n@[1]: { .count = 1, .average = 60, .total = 60 }\n",
			`{"type": "stats", "data": {"@": {"2": {"count": 3, "average": 20, "total": 60}, "1": {"count": 1, "average": 60, "total": 60}}}}`},
		{"@ = max(arg0)", []arena.Entry{entry([]uint64{2, 9})}, 2, "@: 4\n", `{"type": "map", "data": {"@": 4}}`},
		{"@ = min(arg0)", []arena.Entry{entry([]uint64{2, ^uint64(9)})}, 1, "@: 9\n", `{"type": "map", "data": {"@": 9}}`},
		{"@ = max((int64)arg0)", []arena.Entry{entry([]uint64{2, top - 9})}, 1, "@: -9\n", `{"type": "map", "data": {"@": -9}}`},
		{"@ = min((int64)arg0)", []arena.Entry{entry([]uint64{2, ^uint64(top - 9)})}, 1, "@: -9\n", `{"type": "map", "data": {"@": -9}}`},
		{"@ = min(arg0)", []arena.Entry{entry([]uint64{0, 0})}, 1, "@: 0\n", `{"type": "map", "data": {"@": 0}}`},
		{"@ = arg0", []arena.Entry{entry([]uint64{1, 9})}, 0, "@: 9\n", `{"type": "map", "data": {"@": 9}}`},
		{"@ = -5", []arena.Entry{entry([]uint64{1, minus(5)})}, 2, "@: -2\n", `{"type": "map", "data": {"@": -2}}`},
		{"@ = arg0", nil, 1, "@: 0\n", `{"type": "map", "data": {"@": 0}}`},
		{"@ = arg0", nil, 0, "", ""},
		{"@ = arg0 > 1", []arena.Entry{entry([]uint64{1, 1})}, 0, "@: true\n", `{"type": "map", "data": {"@": true}}`},
		{"@[arg1] = arg0", []arena.Entry{entry([]uint64{9}, 1), entry([]uint64{7}, 2)}, 0, "@[2]: 7\n@[1]: 9\n", `{"type": "map", "data": {"@": {"2": 7, "1": 9}}}`},
		{"@[arg1] = (int64)arg0", []arena.Entry{entry([]uint64{9}, 1), entry([]uint64{minus(7)}, 2)}, 0, "@[2]: -7\n@[1]: 9\n", `{"type": "map", "data": {"@": {"2": -7, "1": 9}}}`},
		{"@[arg1] = arg0 > 1", []arena.Entry{entry([]uint64{1}, 1), entry([]uint64{0}, 2)}, 0, "@[1]: true\n@[2]: false\n", `{"type": "map", "data": {"@": {"1": true, "2": false}}}`},
		{"@[arg1] = max((int64)arg0)", []arena.Entry{entry([]uint64{1, top - 1}, 1), entry([]uint64{1, top + 5}, 2)}, 0,
			"@[2]: 5\n@[1]: -1\n", `{"type": "map", "data": {"@": {"2": 5, "1": -1}}}`},
	} {
		m := &compile(t, "uprobe:a:f { "+row.src+" }").Maps[0]
		var b, j strings.Builder
		PrintMap(&b, m, row.entries, 0, row.div)
		JSON{W: &j}.PrintMap(m, row.entries, 0, row.div)
		if b.String() != row.text {
			t.Errorf("%s: got\n%swant\n%s", row.src, b.String(), row.text)
		}
		if strings.TrimSpace(j.String()) != row.json {
			t.Errorf("%s: got\n%swant\n%s", row.src, j.String(), row.json)
		}
	}
}
