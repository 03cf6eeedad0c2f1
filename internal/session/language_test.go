package session

import (
	"fmt"
	"strings"
	"testing"

	"trapless/internal/lang"
)

// TestLanguageInTheTarget runs what the language has in a process. Each line is a
// condition that must be true at every call of getenv, whose argument is a string.
func TestLanguageInTheTarget(t *testing.T) {
	checks := []string{
		`strlen($s) == strlen(str(arg0)) && strlen($s) > 0`,
		`*(uint8 *)arg0 == (uint8)$s[0] && ((uint8 *)arg0)[1] == (uint8)$s[1]`,
		`{ $t = ($s, 5, comm); $t.0 == $s && $t.1 == 5 && $t.2 == "ls" }`,
		`{ $r = (name=$s, size=strlen($s)); $r = (size=strlen($s), name=$s); $r.name == str(arg0) }`,
		`strstr(str_concat("ab", $s), $s) == 2 && strcontains($s, str(arg0 + 1))`,
		`str_concat($s, "x") != $s && strncmp(str_concat($s, "x"), $s, 2) == 0`,
		`{ $n = 0; for ($i : 0..10) { if ($i == 5) { continue; } $n += $i; } $n == 40 }`,
		`{ $n = 0; while (true) { $n++; if ($n > 6) { break; } } $n == 7 }`,
		`{ $n = 1; unroll(5) { $n *= 2 } $n == 32 }`,
		`{ @kept[tid] = ($s, arg0); @kept[tid].0 == $s && @kept[tid].1 == arg0 }`,
		`{ @text = $s; @text == $s }`,
		`{ $p = (struct pair *)arg0; $p.first == *(uint8 *)arg0 && $p.rest.second == *(uint8 *)(arg0 + 1) }`,
		`{ $v = *(struct pair *)arg0; $v.first == *(uint8 *)arg0 && $v.text == str(arg0 + 2, 4) }`,
		`{ $c = if (strlen($s) > 1000) { "long" } else { "short" }; $c == "short" }`,
		`length(arg0) == strlen($s) && twice(21) == 42`,
		`((struct pair *)1).first == 0 && str((uint64)1) == ""`,
		`(int64)reg("sp") != 0 && reg("di") == arg0 && bswap(bswap(arg0)) == arg0`,
		`memcmp($s, str(arg0), 2) == 0 && str(arg0, 3) == str($s, 3)`,
		`{ $a = 1; $b = $a++ + { $a += 10; $a } + $a; $b == 25 }`,
		`func != 0 && pid > 0 && elapsed < 1h`,
	}
	var b strings.Builder
	b.WriteString(`struct pair { char first; struct { char second; } rest; char text[4]; };
		fn length($p : uint64) : uint64 { $i = 0; while ($i < 64) { if (*(uint8 *)($p + $i) == 0) { return $i; } $i++; } return 0; }
		macro twice(x) { x * 2 }
		uprobe:libc:getenv { $s = str(arg0); printf("%s %r %s", $s, buf(arg0, 2), ($s, 1));`)
	for i, check := range checks {
		fmt.Fprintf(&b, "if (%s) { @ok[%d] = count() } else { @bad[%d, str(arg0, 31)] = count() }\n", check, i, i)
	}
	b.WriteString("}")
	_, s, r := launchOutput(t, []string{"/bin/ls", "/"}, b.String())
	for i := range s.config.Script.Maps {
		m := &s.config.Script.Maps[i]
		for _, e := range r.maps[m.Name] {
			if parts := m.KeyParts(e.Key); m.Name == "@bad" {
				t.Errorf("at getenv(%q) this is false: %s", parts[1].Str, checks[parts[0].Int])
			}
		}
	}
	if n := len(r.maps["@ok"]); n != len(checks) {
		t.Errorf("%d of %d were true", n, len(checks))
	}
	for _, v := range r.values {
		if name := v[0].Str; v[1].Type.Kind != lang.Buffer || v[1].Str != name[:2] || v[2].Elems[0].Str != name {
			t.Errorf("printed %v", v)
		}
	}
	if len(r.values) == 0 {
		t.Error("nothing was printed")
	}
}
