package lang

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// describe writes an attach point down, without what is not set.
func describe(a AttachPoint) string {
	s := a.Kind.String()
	for _, f := range []struct {
		name string
		on   bool
		v    any
	}{
		{"path", a.Path != "", a.Path}, {"func", a.Func != "", a.Func}, {"off", a.Offset != 0, a.Offset},
		{"addr", a.Addr != 0, a.Addr}, {"every", a.Every != 0, a.Every},
		{"provider", a.Provider != "", a.Provider},
	} {
		if f.on {
			s += fmt.Sprintf(" %s=%v", f.name, f.v)
		}
	}
	if a.Wildcard {
		s += " wild"
	}
	if a.PathWildcard {
		s += " pathwild"
	}
	return s
}

func TestAttachPoints(t *testing.T) {
	opts := Options{Params: []string{"/bin/x", "f", "libc:malloc", "100"}}
	for _, row := range []struct{ text, want string }{
		{"uprobe:/bin/bash:readline", "uprobe path=/bin/bash func=readline"},
		{"u:libc:malloc", "uprobe path=libc func=malloc"},
		{"UPROBE:libssl.so.3:SSL_write", "uprobe path=libssl.so.3 func=SSL_write"},
		{"uprobe:./prog:f+16", "uprobe path=./prog func=f off=16"},
		{"uprobe:./prog:f+0x1_0", "uprobe path=./prog func=f off=16"},
		{"uprobe:./prog:0x401126", "uprobe path=./prog addr=4198694"},
		{"uprobe:./prog:4198694", "uprobe path=./prog addr=4198694"},
		{"uprobe:main", "uprobe func=main"},
		{"uprobe:/node_modules/@x/y:f", "uprobe path=/node_modules/@x/y func=f"},
		{"uprobe:libc:memcpy@GLIBC_2.2.5", "uprobe path=libc func=memcpy@GLIBC_2.2.5"},
		{"uprobe:0x1000", "uprobe addr=4096"},
		{"uprobe:libc:str*", "uprobe path=libc func=str* wild"},
		{"uprobe:*:*alloc*", "uprobe path=* func=*alloc* wild pathwild"},
		{"uprobe:/usr/lib/*.so:f", "uprobe path=/usr/lib/*.so func=f pathwild"},
		{`uprobe:"/opt/my app/x":"operator new(unsigned long, int)"`, "uprobe path=/opt/my app/x func=operator new(unsigned long, int)"},
		{`uprobe:x:"ns::f"`, "uprobe path=x func=ns::f"},
		{`uprobe:x:"a+b"`, "uprobe path=x func=a+b"},
		{`uprobe:x:"operator+"+4`, "uprobe path=x func=operator+ off=4"},
		{`uprobe:x:"a\"b"`, `uprobe path=x func=a"b`},
		{`uprobe:x:"123"`, "uprobe path=x func=123"},
		{`uprobe:x:"f{}"`, "uprobe path=x func=f{}"},
		{"uprobe:/bin/x:github.com/a/b.(*T).Method", "uprobe path=/bin/x func=github.com/a/b.(*T).Method wild"},
		{"uprobe:/bin/é:é", "uprobe path=/bin/é func=é"},
		{"uprobe:$1:$2", "uprobe path=/bin/x func=f"},
		{"uprobe:$3", "uprobe path=libc func=malloc"},
		{"uprobe:x:pre$2post+$4", "uprobe path=x func=prefpost off=100"},
		{`uprobe:x:cpp:"ns::f"`, "uprobe path=x func=ns::f"}, {"uprobe:x:cpp:f*", "uprobe path=x func=f* wild"},
		{"usdt:/bin/x:p:n", "usdt path=/bin/x func=n provider=p"}, {"U:libc:n", "usdt path=libc func=n provider=* wild"},
		{"usdt::p:n*", "usdt path=* func=n* provider=p wild pathwild"}, {"usdt:n", "usdt path=* func=n provider=* wild pathwild"},
		{"usdt:/bin/x::n", "usdt path=/bin/x func=n provider=* wild"},
		{"begin", "begin"}, {"BEGIN", "begin"}, {"End", "end"}, {"begin:*", "begin"},
		{"interval:s:1", "interval every=1s"}, {"i:ms:$4", "interval every=100ms"}, {"interval:us:1", "interval every=1µs"},
		{"interval:hz:99", "interval every=10.101010ms"}, {"interval:1s", "interval every=1s"},
		{"interval:10ms", "interval every=10ms"}, {"interval:1000", "interval every=1µs"}, {"interval:s:1e3", "interval every=16m40s"},
	} {
		if row.text == "interval:hz:99" {
			row.want = "interval every=" + (time.Second / 99).String()
		}
		s, err := Compile(row.text+" { }", "t", opts)
		if err != nil {
			t.Errorf("%s: %v", row.text, err)
			continue
		}
		a := s.Probes[0].Attach[0]
		if got := describe(a); got != row.want || a.Text != row.text {
			t.Errorf("%s\ngot  %s\nwant %s", row.text, got, row.want)
		}
	}
}

func TestAttachErrors(t *testing.T) {
	for _, row := range []errorRow{
		{"foo:bar", []string{"1:1: unknown probe type 'foo' (probe types are uprobe:PATH:FUNCTION, usdt:PATH:NAME, interval:UNIT:COUNT, begin and end)"}},
		{"uporbe:a:b", []string{"1:1: unknown probe type 'uporbe' (did you mean uprobe?)"}},
		{"beginn", []string{"1:1: unknown probe type 'beginn' (did you mean begin?)"}},
		{"kprobe:tcp_reset", []string{"1:1: kprobe probes are in the kernel, trapless probes user space only (use uprobe:PATH:FUNCTION for a function of the target)"}},
		{"t:syscalls:sys_enter_openat", []string{"1:1: tracepoint probes are in the kernel, trapless probes user space only (use uprobe:PATH:FUNCTION for a function of the target)"}},
		{"kfunc:x", []string{"1:1: fentry probes are in the kernel, trapless probes user space only (use uprobe:PATH:FUNCTION for a function of the target)"}},
		{"hardware:cycles:5", []string{"1:1: hardware probes are in the kernel, trapless probes user space only (use uprobe:PATH:FUNCTION for a function of the target)"}},
		{"usdt:a:b:c:d", []string{"1:1: a usdt is usdt:PATH:PROVIDER:NAME, with 4 parts this one is none"}},
		{"usdt:a:", []string{"1:8: expected the name of a USDT probe (as usdt:PATH:PROVIDER:NAME, or usdt:PATH:*)"}},
		{"usdt", []string{"1:1: a usdt is usdt:PATH:PROVIDER:NAME, with 0 parts this one is none"}},
		{"profile:hz:99", []string{"1:1: not supported yet: profile probes"}},
		{"w:0x100:8:rw", []string{"1:1: not supported yet: watchpoint probes"}},
		{"self:signal:SIGUSR1", []string{"1:1: not supported yet: self probes"}},
		{"ur:a:f+4", []string{"1:6: a uretprobe is at the returns of a whole function, not at an offset (use uretprobe:PATH:FUNCTION)"}},
		{"uretprobe", []string{"1:1: a uretprobe is uretprobe:PATH:FUNCTION, with 0 parts this one is none (put quotes around a function whose name has a ':')"}},
		{"name=uprobe:a:f", []string{"1:1: not supported yet: names of probes"}},
		{"u*:a:f", []string{"1:1: not supported yet: wildcards in the type of a probe"}},
		{"uprobe", []string{"1:1: a uprobe is uprobe:PATH:FUNCTION, with 0 parts this one is none (put quotes around a function whose name has a ':')"}},
		{"uprobe:", []string{"1:8: expected a function or an address"}},
		{"uprobe:a:", []string{"1:10: expected a function or an address"}},
		{"uprobe::f", []string{"1:8: expected a path or the name of a library (uprobe:FUNCTION is a function of the target's executable)"}},
		{"uprobe:a:b:c:d", []string{"1:1: a uprobe is uprobe:PATH:FUNCTION, with 4 parts this one is none (put quotes around a function whose name has a ':')"}},
		{"uprobe:a@f.c:12", []string{"1:1: lines of source can only be found where debug information can be read"}},
		{"uprobe:a@f.c:0", []string{"1:14: lines and columns are numbered from 1"}},
		{"uprobe:a@:12", []string{"1:8: expected a file of source behind '@' (as uprobe:/bin/bash@readline.c:362)"}},
		{"uprobe:*@f.c:12", []string{"1:8: a line of source needs one file, not a wildcard"}},
		{"uretprobe:a@f.c:12", []string{"1:1: a uretprobe is at the returns of a function, not at a line (use a uprobe)"}},
		{"uprobe:a:f+x", []string{"1:10: invalid offset 'x' after the function (put quotes around a function whose name has a '+')"}},
		{"uprobe:a:f+", []string{"1:10: invalid offset '' after the function (put quotes around a function whose name has a '+')"}},
		{"uprobe:a:+4", []string{"1:10: expected one function and one offset"}},
		{"uprobe:a:f+1+2", []string{"1:10: expected one function and one offset"}},
		{"uprobe:a:f*+4", []string{"1:10: an offset needs one function, not a wildcard"}},
		{"uprobe:a:0", []string{"1:10: there is no function at address 0"}},
		{"uprobe:a:0x", []string{"1:10: invalid address: invalid hexadecimal integer '0x'"}},
		{"uprobe:*:0x10", []string{"1:10: an address needs one file, not a wildcard"}},
		{"uprobe:a:f/arg0/", []string{"1:10: 'f/arg0/' is no function (put a space before the predicate)"}},
		{`uprobe:"a:f`, []string{`1:1: quoted part without an end (close it with ")`}},
		{"uprobe:$1:f", []string{"1:8: parameter $1 was not given (parameters follow the script on the command line)"}},
		{"uprobe:$0:f", []string{"1:8: parameters are numbered from $1"}},
		{"begin:x", []string{"1:1: begin takes no arguments"}},
		{"end:a:b", []string{"1:1: end takes no arguments"}},
		{"interval", []string{"1:1: an interval is interval:UNIT:COUNT (as interval:s:1)"}},
		{"interval:s:1:2", []string{"1:1: an interval is interval:UNIT:COUNT (as interval:s:1)"}},
		{"interval:m:1", []string{"1:10: unknown unit 'm' (units are s, ms, us and hz)"}},
		{"interval:s:0", []string{"1:12: invalid interval: an interval is a whole number of at least 1"}},
		{"interval:s:x", []string{"1:12: invalid interval: 'x' is no integer"}},
		{"interval:s:99999999999", []string{"1:12: interval is too long"}},
		{"interval:hz:2000000", []string{"1:13: interval is too short, the shortest is 1us"}},
		{"interval:999", []string{"1:10: interval of 999 ns, the shortest is 1us (a number without a unit counts nanoseconds)"}},
		{"interval:x", []string{"1:10: invalid interval: 'x' is no integer (as interval:s:1 or interval:1s)"}},
		{"interval:9999d", []string{"1:10: interval is too long"}},
		{"kprobe:x, uprobe:a:b, foo:y", []string{
			"1:1: kprobe probes are in the kernel, trapless probes user space only (use uprobe:PATH:FUNCTION for a function of the target)",
			"1:23: unknown probe type 'foo' (probe types are uprobe:PATH:FUNCTION, usdt:PATH:NAME, interval:UNIT:COUNT, begin and end)"}},
		{"uprobe:a:f g", []string{"1:12: expected '{', found 'g' (a probe is: uprobe:PATH:FUNCTION /predicate/ { statements })"}},
	} {
		checkErrors(t, row.src+" { }", row.src, row.want, 0)
	}
}

func TestSeveralKindsShareAProgram(t *testing.T) {
	s := mustCompile(t, "end, i:s:1, u:a:f, i:s:2 { print(1) } begin { print(2) }", Options{})
	var got []string
	for _, p := range s.Probes {
		got = append(got, fmt.Sprintf("%v:%d", p.Kind, len(p.Attach)))
	}
	if fmt.Sprint(got) != "[end:1 interval:2 uprobe:1 begin:1]" {
		t.Errorf("probes %v", got)
	}
	if s.Probes[0].Prog != s.Probes[2].Prog || s.Probes[0].Prog == s.Probes[3].Prog {
		t.Error("programs are not shared as they should")
	}
	if s.Probes[0].Text != "end, i:s:1, u:a:f, i:s:2" {
		t.Errorf("text %q", s.Probes[0].Text)
	}
}

func TestWildcardMatch(t *testing.T) {
	for _, row := range []struct {
		pattern, s string
		want       bool
	}{
		{"abc", "abc", true}, {"abc", "abcd", false}, {"", "", true},
		{"*", "", true}, {"*", "x", true}, {"a*", "abc", true}, {"a*", "ba", false}, {"*c", "abc", true}, {"*c", "cb", false},
		{"a*c", "ac", true}, {"a*c", "abbc", true}, {"a*a", "a", false}, {"a*b*c", "axbxc", true}, {"a*b*c", "acb", false},
		{"*b*", "abc", true}, {"**", "x", true}, {"a?c", "abc", false}, {"[ab]", "a", false}, {"*ab*ba*", "aba", false},
	} {
		a := AttachPoint{Func: row.pattern, Path: row.pattern}
		if got := a.Match(row.s); got != row.want || a.MatchPath(row.s) != got {
			t.Errorf("%q matches %q: %v", row.pattern, row.s, got)
		}
	}
}

func TestParseAttach(t *testing.T) {
	for text, want := range map[string][]string{
		"uprobe:libc:malloc+4":                   {"uprobe libc malloc 4"},
		"uprobe:libc:m*,uretprobe:\"/a b\":free": {"uprobe libc m* 0", "uretprobe /a b free 0"},
		"uprobe":                                 nil,
		"":                                       nil,
		"libc:malloc":                            nil,
		"uprobe:a:b { exit(); } uprobe:c:d":      nil,
	} {
		points, err := ParseAttach(text)
		var got []string
		for _, p := range points {
			got = append(got, fmt.Sprintf("%v %s %s %d", p.Kind, p.Path, p.Func, p.Offset))
		}
		if !slices.Equal(got, want) || (err == nil) != (want != nil) {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
}
