package diag

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestPos(t *testing.T) {
	s := NewSource("f", "ab\n\ncd")
	for _, row := range []struct {
		offset int
		want   Pos
	}{
		{-1, Pos{1, 1}}, {0, Pos{1, 1}}, {1, Pos{1, 2}}, {2, Pos{1, 3}},
		{3, Pos{2, 1}}, {4, Pos{3, 1}}, {6, Pos{3, 3}}, {99, Pos{3, 3}},
	} {
		if got := s.Pos(row.offset); got != row.want {
			t.Errorf("Pos(%d) = %v, want %v", row.offset, got, row.want)
		}
	}
}

func TestLine(t *testing.T) {
	s := NewSource("f", "ab\r\n\ncd")
	for n, want := range []string{"", "ab", "", "cd", ""} {
		if got := s.Line(n); got != want {
			t.Errorf("Line(%d) = %q, want %q", n, got, want)
		}
	}
}

func TestSlice(t *testing.T) {
	s := NewSource("f", "hello")
	for _, row := range []struct {
		at   Span
		want string
	}{{Span{1, 3}, "el"}, {Span{-4, 2}, "he"}, {Span{4, 99}, "o"}, {Span{3, 1}, ""}} {
		if got := s.Slice(row.at); got != row.want {
			t.Errorf("Slice(%v) = %q, want %q", row.at, got, row.want)
		}
	}
}

func TestOneLineForm(t *testing.T) {
	c := &Collector{Source: NewSource("x.bt", "a\nbc")}
	c.Errorf(Span{3, 4}, "no %s", "c")
	c.Errorf(Span{0, 1}, "no a")
	want := "x.bt:1:1-2: ERROR: no a\nx.bt:2:2-3: ERROR: no c"
	if got := c.Err().Error(); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestErrIsAList(t *testing.T) {
	c := &Collector{Source: NewSource("x", "a")}
	if err := c.Err(); err != nil {
		t.Fatalf("empty collector: %v", err)
	}
	c.Warnf(Span{}, "only a warning")
	if err := c.Err(); err != nil {
		t.Fatalf("warning became an error: %v", err)
	}
	c.Errorf(Span{}, "e")
	var l List
	if !errors.As(c.Err(), &l) || len(l) != 1 || l[0].Severity != Error {
		t.Fatalf("got %v", c.Err())
	}
	if w := c.Sorted(Warning); len(w) != 1 || w[0].Message != "only a warning" {
		t.Fatalf("warnings: %v", w)
	}
}

func TestCollectorDropsRepeatsAndStopsAtLimit(t *testing.T) {
	c := &Collector{Source: NewSource("x", "abc"), Limit: 2}
	c.Errorf(Span{0, 1}, "same")
	c.Errorf(Span{0, 1}, "same")
	c.Errorf(Span{1, 2}, "same")
	c.Errorf(Span{2, 3}, "third").Hint("may still be added to")
	if c.ErrorCount() != 2 || !c.Full() {
		t.Errorf("got %v", c.Err())
	}
}

func TestWriteText(t *testing.T) {
	for _, row := range []struct {
		name, text string
		at         Span
		want       string
	}{
		{"mark", "a bad c", Span{2, 5}, "s:1:3-6: ERROR: m\na bad c\n  ~~~\n"},
		{"empty span", "ab", Span{1, 1}, "s:1:2-2: ERROR: m\nab\n ~\n"},
		{"end of text", "ab\n", Span{3, 3}, "s:2:1-1: ERROR: m\n\n~\n"},
		{"tab", "\tx", Span{1, 2}, "s:1:2-3: ERROR: m\n    x\n    ~\n"},
		{"wide characters", "é日x", Span{5, 6}, "s:1:6-7: ERROR: m\né日x\n  ~\n"},
		{"several lines", "ab\ncd\ne", Span{1, 4}, "s:1-2: ERROR: m\nab\ncd\n"},
		{"terminal escapes", "a\x1b[31mb", Span{0, 1}, "s:1:1-2: ERROR: m\na?[31mb\n~\n"},
		{"not UTF-8", "a\xffb", Span{2, 3}, "s:1:3-4: ERROR: m\na?b\n  ~\n"},
	} {
		c := &Collector{Source: NewSource("s", row.text)}
		c.Errorf(row.at, "m")
		var b bytes.Buffer
		if err := WriteText(&b, c.Sorted(Error)); err != nil {
			t.Fatal(err)
		}
		if b.String() != row.want {
			t.Errorf("%s:\n%s\nwant:\n%s", row.name, b.String(), row.want)
		}
	}
}

func TestWriteTextHintsAndNotes(t *testing.T) {
	c := &Collector{Source: NewSource("s", "$a $a")}
	c.Errorf(Span{3, 5}, "again").Note(Span{0, 2}, "first here").Hint("use %s", "$b")
	var b strings.Builder
	if err := WriteText(&b, c.Sorted(Error)); err != nil {
		t.Fatal(err)
	}
	want := "s:1:4-6: ERROR: again\n$a $a\n   ~~\n" +
		"s:1:1-3: ERROR: first here\n$a $a\n~~\nHINT: use $b\n"
	if b.String() != want {
		t.Errorf("got:\n%s\nwant:\n%s", b.String(), want)
	}
}

func TestUnplaced(t *testing.T) {
	c := &Collector{Source: NewSource("s", "text")}
	c.Plainf("no such option").Hint("there are others")
	var text, object strings.Builder
	if err := errors.Join(WriteText(&text, c.Sorted(Error)), WriteJSON(&object, c.Sorted(Error))); err != nil {
		t.Fatal(err)
	}
	if got, want := text.String(), "ERROR: no such option\nHINT: there are others\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if !json.Valid([]byte(object.String())) {
		t.Errorf("invalid JSON %q", object.String())
	}
}

func TestWriteJSON(t *testing.T) {
	c := &Collector{Source: NewSource("s.bt", "x\n  <bad>")}
	c.Errorf(Span{4, 9}, "no <bad>").Hint("h").Note(Span{0, 1}, "n")
	var b strings.Builder
	if err := WriteJSON(&b, c.Sorted(Error)); err != nil {
		t.Fatal(err)
	}
	want := `{"severity":"error","file":"s.bt","line":2,"col":3,"end_line":2,"end_col":8,` +
		`"message":"no <bad>","source":"  <bad>","hints":["h"],"notes":[{"line":1,"col":1,"message":"n"}]}` + "\n"
	if b.String() != want {
		t.Errorf("got  %s\nwant %s", b.String(), want)
	}
}

func FuzzRender(f *testing.F) {
	f.Add("ab\ncd", 1, 4)
	f.Add("é\t\xff", 2, 3)
	f.Fuzz(func(t *testing.T, text string, start, end int) {
		c := &Collector{Source: NewSource("s", text)}
		c.Errorf(Span{start, end}, "m")
		var b bytes.Buffer
		if err := WriteText(&b, c.Sorted(Error)); err != nil {
			t.Fatal(err)
		}
		if !utf8.Valid(b.Bytes()) || bytes.ContainsRune(b.Bytes(), 0x1b) {
			t.Errorf("unclean output %q", b.String())
		}
		b.Reset()
		if err := WriteJSON(&b, c.Sorted(Error)); err != nil {
			t.Fatal(err)
		}
		if !json.Valid(b.Bytes()) {
			t.Errorf("invalid JSON %q", b.String())
		}
	})
}
