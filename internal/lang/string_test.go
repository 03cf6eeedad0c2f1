package lang

import (
	"fmt"
	"strings"
	"testing"

	"trapless/internal/diag"
)

// TestStrings runs statements with arg0 pointing to "hello", arg1 to a text of
// 300 characters, and arg2 to nothing.
func TestStrings(t *testing.T) {
	long := strings.Repeat("0123456789", 30)
	for _, row := range []struct{ name, body, want string }{
		{"print", "print(str(arg0))", "print hello"},
		{"printf", `printf("%s %d %s", str(arg0), arg2, comm)`, "printf hello,0,worker"},
		{"cut by default", "print(str(arg1))", "print " + long[:127] + ".."},
		{"cut by a length", "print(str(arg1, 12)); print(str(arg0, 3)); print(str(arg0, 5)); print(str(arg0, 6))", "print " + long[:12] + "; print hel; print hello; print hello"},
		{"long", "print(str(arg1, 299))", "print " + long[:299]},
		{"bad pointer", `printf("[%s]", str(arg2))`, "printf"},
		{"pointer from a map", "@p[tid] = arg0; print(str(@p[tid]))", "print hello"},
		{"computed pointer", "print(str(arg0 + 2))", "print llo"},
		{"comm", "print(comm); print(comm())", "print worker; print worker"},
		{"equal", `print(str(arg0) == "hello"); print("hello" == str(arg0)); print(str(arg0) != "hello")`, "print true; print true; print false"},
		{"shorter", `print(str(arg0) == "hell"); print(str(arg0) != "hell")`, "print false; print true"},
		{"longer", `print(str(arg0) == "hello!"); print(str(arg0) == "hello, world and more")`, "print false; print false"},
		{"other", `print(str(arg0) == "hallo"); print(str(arg0) == ""); print(str(arg2) == "")`, "print false; print false; print true"},
		{"comm equal", `print(comm == "worker"); print(comm == "work"); print(comm == "worker2")`, "print true; print false; print false"},
		{"cut before it is compared", `print(str(arg0, 4) == "hell"); print(str(arg0, 4) == "hello")`, "print true; print false"},
		{"in expressions", `print((str(arg0) == "hello") && arg2 == 0); print(str(arg0) == "x" ? arg2 : 5)`, "print true; print 5"},
		{"condition", `if (comm == "worker") { print(1) } if (str(arg0) == "no") { print(2) }`, "print 1"},
		{"strncmp", `print(strncmp(str(arg0), "help", 3)); print(strncmp(str(arg0), "help", 4)); print(strncmp("hello", str(arg0), 10)); print(strncmp(str(arg0), "hell", 5))`,
			"print 0; print 1; print 0; print 1"},
		{"strncmp of nothing", `print(strncmp(comm, "x", 0)); print(strncmp("ab", "ac", 1)); print(strncmp("ab", "ac", 2))`, "print 0; print 0; print 1"},
		{"keys", `@x[str(arg0)] = 3; @x["hello"]++; @x["other"] = 9; print(@x[str(arg0)]); print(@x["hello"] + @x["other"])`, "print 4; print 13"},
		{"keys of two parts", `@x[comm, 5] = 1; print(@x["worker", 5]); print(@x["worker", 6])`, "print 1; print 0"},
		{"cut keys", `@x[str(arg1, 63)] = 1; print(@x[str(arg1, 63)]); print(has_key(@x, "0"))`, "print 1; print false"},
		{"short keys", `@x["a"] = 1; print(@x["a"]); print(@x["b"])`, "print 1; print 0"},
	} {
		b := newBench(t, "uprobe:a:f { "+row.body+" }", Options{MaxMapKeys: 16})
		b.machine.Comm = "worker"
		b.machine.ReadUser = func(addr uint64, buf []byte) bool {
			for base, text := range map[uint64]string{0x1000: "hello\x00", 0x2000: long + "\x00"} {
				if addr >= base && addr-base+uint64(len(buf)) <= uint64(len(text)) {
					copy(buf, text[addr-base:])
					return true
				}
			}
			return false
		}
		if got := b.run(0, 0x1000, 0x2000, 0); got != row.want {
			t.Errorf("%s: got %q, want %q\n%s", row.name, got, row.want, b.script.Probes[0].Prog)
		}
	}
}

func TestKeyParts(t *testing.T) {
	s := mustCompile(t, `uprobe:a:f { @x[comm, (int8)arg0, "0123456789"] = count() }`, Options{})
	words := append(append(textWords("name", 16), ^uint64(0)), textWords("0123456789", 16)...)
	var got []string
	for _, v := range s.Maps[0].KeyParts(words) {
		got = append(got, show(v))
	}
	if fmt.Sprint(got) != "[name -1 0123456789]" || s.Maps[0].Spec.KeySize != 40 {
		t.Errorf("%q, keys of %d bytes", got, s.Maps[0].Spec.KeySize)
	}
	s.Maps[0].KeyParts(nil) // what the arena holds is not believed
}

func TestCutKeysAreSaid(t *testing.T) {
	s := mustCompile(t, "uprobe:a:f { @x[str(arg0)] = count() }", Options{})
	if len(s.Warnings) != 1 || !strings.Contains(s.Warnings[0].Message, "cut to 63 bytes") {
		t.Errorf("warnings: %v", diag.List(s.Warnings))
	}
}
