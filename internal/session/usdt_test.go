package session

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"trapless/internal/arena"
	"trapless/internal/testkit"
)

// keysOf are the keys of a map with its values.
func keysOf(entries []arena.Entry) map[string]uint64 {
	out := map[string]uint64{}
	for _, e := range entries {
		var words []string
		for _, w := range e.Key {
			words = append(words, fmt.Sprintf("%#x", w))
		}
		out[strings.Join(words, " ")] = e.Value[0]
	}
	return out
}

// only requires that a map has one entry.
func only(t *testing.T, r *recorder, name, key string, n uint64) {
	t.Helper()
	if got := keysOf(r.maps[name]); len(got) != 1 || got[key] != n {
		t.Errorf("%s: %v, want [%s] %d times", name, got, key, n)
	}
}

// Each form of operand gives the value that the target put there.
func TestUSDTArguments(t *testing.T) {
	for _, flags := range []testkit.Flags{testkit.PIE, testkit.NoPIE} {
		p := testkit.Start(t, testkit.Compile(t, "usdt.c", flags))
		var numbers, semaphore uint64
		fmt.Sscanf(p.Ask("nothing"), "semaphore=%d numbers=%v", &semaphore, &numbers)
		s, r := attach(t, p.Pid, `
			usdt::test:registers { @r1[arg0, arg1, arg2] = count(); @r2[arg3, arg4, arg5] = count(); @r3[arg6, arg7] = count(); @r4[arg8, arg9] = count(); }
			usdt::test:memory { @m1[arg0, arg1, arg2, arg3] = count(); @m2[arg4, arg5, arg6] = count(); @m3[arg7, arg8] = count(); }
			usdt::test:constants { @c[arg0, arg1, arg2, arg3, arg4] = count(); }
			usdt:*:t*:tw* { @t[arg0] = count(); }
			usdt:`+exe(t, p.Pid)+`:odd { @o[arg0] = count(); }`)
		p.Ask("fire 1000")
		finish(t, s)
		only(t, r, "@r1", "0xf00000008f00fe80 0xffffffff8f00fe80 0x8f00fe80", 1000)
		only(t, r, "@r2", "0xfffffffffffffe80 0xfe80 0xffffffffffffff80", 1000)
		only(t, r, "@r3", "0x80 0xfe", 1000)
		only(t, r, "@r4", "0xf00000008f00fe81 0xfe81", 1000)
		only(t, r, "@m1", "0xffffffffffffffea 0xffffffffffffffea 0xfffffff9 0xfffffffffffffff9", 1000)
		only(t, r, "@m2", "0x21 0x1122334455667788 0x3fe0000000000000", 1000)
		only(t, r, "@m3", "0xb 0x0", 1000)
		only(t, r, "@c", fmt.Sprintf("0xfffffffffffffffb 0xfffffffb 0xffffffffffffffff 0x123456789abcdef0 %#x", numbers), 1000)
		if got := keysOf(r.maps["@t"]); len(got) != 2 || got["0x1"] != 1000 || got["0x2"] != 1000 {
			t.Errorf("%v: the two places of twice: %v", flags, got)
		}
		only(t, r, "@o", "0x3", 1000)
		p.Stop()
	}
}

// An argument of which it is not known where it is makes only the programs impossible that use it.
func TestUSDTArgumentsThatAreRefused(t *testing.T) {
	p := testkit.Start(t, testkit.Compile(t, "usdt.c"))
	for src, want := range map[string]string{
		"usdt::other:odd { @[arg1] = count(); }":              "8@%fs:8: its operand is not understood",
		"usdt::other:odd { @[arg2] = count(); }":              "vector register",
		"usdt::other:odd { @[arg3] = count(); }":              "the symbol nowhere is not in the file's table",
		"usdt::other:odd { @[arg4] = count(); }":              "the probe has 4 arguments",
		"usdt::nothing { @ = count(); }":                      "no USDT probe of that name",
		"usdt:" + exe(t, p.Pid) + ":nothing { @ = count(); }": "the file has other:odd, test:constants, test:guarded, test:memory, test:registers, test:twice",
		"usdt:libc:nothing { @ = count(); }":                  `no USDT probe "nothing"`,
	} {
		c, _ := config(t, src)
		s, err := Attach(t.Context(), p.Pid, c)
		if err == nil {
			s.Close()
			t.Errorf("%s: no error", src)
		} else if !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", src, err, want)
		}
	}
	p.Stop()
}

// A semaphore is raised while a session is at work, once, and lowered at its end; also at the end of one
// that shares it with another tracer.
func TestUSDTSemaphore(t *testing.T) {
	p := testkit.Start(t, testkit.Compile(t, "usdt.c"))
	value := func(command string) (n uint64) {
		fmt.Sscanf(p.Ask(command), "semaphore=%d", &n)
		return n
	}
	s, r := attach(t, p.Pid, "usdt::guarded { @ = count(); } usdt::guarded { @b = sum(arg0); }")
	if n := value("guarded 100"); n != 1 {
		t.Errorf("the semaphore is %d during a session", n)
	}
	if err := s.Arm(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	if n := value("guarded 50"); n != 0 {
		t.Errorf("the semaphore is %d while nothing is armed", n)
	}
	if err := s.Arm(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	if n := value("guarded 100"); n != 1 {
		t.Errorf("the semaphore is %d when it is armed again", n)
	}
	finish(t, s)
	if n := value("guarded 100"); n != 0 {
		t.Errorf("the semaphore is %d after the session", n)
	}
	if r.maps["@"][0].Value[0] != 200 || r.maps["@b"][0].Value[1] != 2*4950 {
		t.Errorf("counted %v", r.maps)
	}
	p.Stop()
}

// The probes that Debian's python3 has, in a program with semaphores, and those of libstdc++.
func TestUSDTOfRealPrograms(t *testing.T) {
	python := testkit.Command(t, "/usr/bin/python3", "python3")
	if resolved, err := filepath.EvalSymlinks(python); err == nil {
		python = resolved
	}
	if text, err := os.ReadFile(python); err != nil || !strings.Contains(string(text), "function__entry") {
		t.Skipf("%s has no USDT probes: %v", python, err)
	}
	c, r := config(t, fmt.Sprintf(`usdt:%s:python:function__return { if (strncmp(str(arg1), "wanted", 7) == 0) { @[arg2] = count(); } }
		usdt:%[1]s:import__find__load__start { @imports = count(); }`, python))
	lines := life(t, []string{python, "-c", "def wanted(i): pass\nlist(map(wanted, range(1000)))\nprint('ok')"}, c)
	if len(lines) == 0 || lines[len(lines)-1] != "ok" {
		t.Fatalf("python said %q", lines)
	}
	only(t, r, "@", "0x1", 1000)
	if len(r.maps["@imports"]) == 0 {
		t.Errorf("no import was seen")
	}
}

// The same as probes at the functions whose first instructions they are behind.
func TestUSDTOfALibrary(t *testing.T) {
	c, r := config(t, `usdt:libstdc++:libstdcxx:catch { @catch = count(); } usdt:libstdc++:throw { @throw = count(); @info[arg1 != 0] = count(); }
		uprobe:libstdc++:__cxa_begin_catch { @begin = count(); } uprobe:libstdc++:__cxa_throw { @called = count(); }`)
	lines := life(t, []string{testkit.Compile(t, "throws.cpp")}, c)
	if n := len(lines); n == 0 || !strings.HasPrefix(lines[n-1], "thrown ") {
		t.Fatalf("the target said %q", lines)
	}
	only(t, r, "@info", "0x1", r.maps["@called"][0].Value[0])
	for a, b := range map[string]string{"@throw": "@called", "@catch": "@begin"} {
		if x, y := keysOf(r.maps[a])[""], keysOf(r.maps[b])[""]; x != y || x == 0 {
			t.Errorf("%s %d, %s %d", a, x, b, y)
		}
	}
}
