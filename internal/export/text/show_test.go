package text

import (
	"math"
	"strings"
	"testing"
	"time"

	"trapless/internal/diag"
	"trapless/internal/lang"
)

func number8(n int64) lang.Value {
	return lang.Value{Type: lang.Type{Kind: lang.Int, Size: 8, Signed: true}, Int: uint64(n)}
}

func of(k lang.Kind, elems ...lang.Value) lang.Value {
	return lang.Value{Type: lang.Type{Kind: k}, Elems: elems}
}

func ofText(k lang.Kind, s string) lang.Value {
	return lang.Value{Type: lang.Type{Kind: k, Len: len(s)}, Str: s}
}

// What each kind of value looks like, alone and as JSON.
func TestValues(t *testing.T) {
	named := lang.Type{Kind: lang.Struct, Layout: &lang.Layout{Name: "struct p", Fields: []lang.Field{{Name: "x"}, {Name: "y"}}}}
	color := lang.Type{Kind: lang.Int, Size: 4, Enum: &lang.Enum{Name: "enum color", Values: []lang.EnumValue{{Name: "RED", Value: 1}}}}
	str := ofText(lang.String, "a b")
	for _, row := range []struct {
		name       string
		v          lang.Value
		text, json string
	}{
		{"array", of(lang.Array, number8(1), number8(-2)), "[1,-2]", "[1,-2]"},
		{"tuple", of(lang.Tuple, number8(1), str, of(lang.Tuple, number8(2))), "(1, a b, (2))", `[1,"a b",[2]]`},
		{"struct", lang.Value{Type: named, Elems: []lang.Value{number8(3), str}}, "{ .x = 3, .y = a b }", `{"x": 3, "y": "a b"}`},
		{"empty record", lang.Value{Type: lang.Type{Kind: lang.Record, Layout: &lang.Layout{}}}, "{}", "{}"},
		{"buffer", ofText(lang.Buffer, "a\x00\xff"), `a\x00\xff`, "[97,0,-1]"},
		{"pointer", lang.Value{Type: lang.Type{Kind: lang.Pointer}, Int: 0xabc}, "0xabc", "2748"},
		{"bool", lang.Value{Type: lang.Type{Kind: lang.Bool}, Int: 1}, "true", "true"},
		{"enum", lang.Value{Type: color, Int: 1}, "RED", "1"},
		{"enum without the value", lang.Value{Type: color, Int: 7}, "7", "7"},
		{"double", lang.Value{Type: lang.Type{Kind: lang.Float, Size: 8}, Int: math.Float64bits(1.5)}, "1.500000", "1.500000"},
		{"float", lang.Value{Type: lang.Type{Kind: lang.Float, Size: 4}, Int: uint64(math.Float32bits(-2.25))}, "-2.250000", "-2.250000"},
		{"ipv4", ofText(lang.Inet, "\x7f\x00\x00\x01"), "127.0.0.1", `"127.0.0.1"`},
		{"ipv6", ofText(lang.Inet, strings.Repeat("\x00", 15)+"\x01"), "::1", `"::1"`},
		{"mac", ofText(lang.MAC, "\x05\x04\x03\x02\x01\xab"), "05:04:03:02:01:AB", `"05:04:03:02:01:AB"`},
		{"user", lang.Value{Type: lang.Type{Kind: lang.User}, Int: 0}, "root", `"root"`},
		{"no such user", lang.Value{Type: lang.Type{Kind: lang.User}, Int: 3999999999}, "3999999999", `"3999999999"`},
		{"nothing", lang.Value{}, "null", "null"},
		{"large", lang.Value{Type: lang.Type{Kind: lang.Int, Size: 8}, Int: math.MaxUint64}, "18446744073709551615", `"18446744073709551615"`},
	} {
		if got := Value(row.v); got != row.text {
			t.Errorf("%s: %q, want %q", row.name, got, row.text)
		}
		if got := jsonValue(row.v); got != row.json {
			t.Errorf("%s: JSON %s, want %s", row.name, got, row.json)
		}
	}
}

// The conversions that bpftrace has beyond C's, and those for floating-point values.
func TestConversions(t *testing.T) {
	buf := ofText(lang.Buffer, "a\x01")
	double := lang.Value{Type: lang.Type{Kind: lang.Float, Size: 8}, Int: math.Float64bits(2.5)}
	for _, row := range []struct {
		verb, want string
		v          lang.Value
	}{
		{"r", `a\x01`, buf}, {"rx", `\x61\x01`, buf}, {"rh", "61 01", buf}, {"s", `a\x01`, buf},
		{"f", "2.500000", double}, {"e", "2.500000e+00", double}, {"g", "2.5", double}, {"f", "-3.000000", number8(-3)},
	} {
		if got := convert(lang.Conversion{Verb: row.verb}, row.v); got != row.want {
			t.Errorf("%%%s: %q, want %q", row.verb, got, row.want)
		}
	}
}

// strftime's conversions; the expected texts are those of date(1) in the C locale.
func TestStrftime(t *testing.T) {
	at := time.Date(2024, 3, 5, 7, 8, 9, 123456789, time.UTC)
	for format, want := range map[string]string{
		"%Y-%m-%d %H:%M:%S": "2024-03-05 07:08:09",
		"%a %A %b %B %h":    "Tue Tuesday Mar March Mar",
		"%c|%x|%X":          "Tue Mar  5 07:08:09 2024|03/05/24|07:08:09",
		"%C%y %e %j":        "2024  5 065",
		"%D %F %T %R %r":    "03/05/24 2024-03-05 07:08:09 07:08 07:08:09 AM",
		"%I %k %l %p %P":    "07  7  7 AM am",
		"%s.%f":             "1709622489.123456",
		"%u %w %G %g %V":    "2 2 2024 24 10",
		"%U %W":             "09 10",
		"%z %Z %n%t%%":      "+0000 UTC \n\t%",
		"%Ey %q %":          "24 %q %",
	} {
		if got := Strftime(format, at); got != want {
			t.Errorf("%q: %q, want %q", format, got, want)
		}
	}
}

// What actions print, as text and as JSON.
func TestActions(t *testing.T) {
	source := diag.NewSource("x.bt", "begin { errorf(1) }")
	var out, errs strings.Builder
	for _, row := range []struct {
		kind lang.ActionKind
		text string
		want string
		json string
	}{
		{lang.Join, "a b\n", "a b\n", `{"type": "join", "data": "a b"}`},
		{lang.Cat, "a\n", "a\n", `{"type": "cat", "data": "a\n"}`},
		{lang.PrintTime, "07:00\n", "07:00\n", `{"type": "time", "data": "07:00\n"}`},
		{lang.System, "ok\n", "ok\n\n", `{"type": "syscall", "data": "ok\n"}`},
	} {
		out.Reset()
		if err := (Plain{W: &out}).Say(&lang.Action{Kind: row.kind}, row.text); err != nil || out.String() != row.want {
			t.Errorf("%v: %q, %v; want %q", row.kind, out.String(), err, row.want)
		}
		out.Reset()
		if err := (JSON{W: &out}).Say(&lang.Action{Kind: row.kind}, row.text); err != nil || out.String() != row.json+"\n" {
			t.Errorf("%v: JSON %s, %v; want %s", row.kind, out.String(), err, row.json)
		}
	}
	r := &lang.Report{Kind: "errorf", Source: source, Span: diag.Span{Start: 8, End: 17}, Text: "bad"}
	out.Reset()
	if err := (Plain{W: &out, Errors: &errs}).Report(r); err != nil || errs.String() != "x.bt:1:9-18: ERROR: bad\n" || out.Len() != 0 {
		t.Errorf("errorf: %q, %v", errs.String(), err)
	}
	if err := (JSON{W: &out}).Report(r); err != nil || out.String() != `{"type": "errorf", "msg": "bad", "filename": "x.bt", "line": 1, "col": 9}`+"\n" {
		t.Errorf("errorf: JSON %s, %v", out.String(), err)
	}
	r.Kind, r.Severity = "warnf", diag.Warning
	errs.Reset()
	if err := (Plain{Errors: &errs, Quiet: true}).Report(r); err != nil || errs.Len() != 0 {
		t.Errorf("a warning that is not wanted: %q, %v", errs.String(), err)
	}
}
