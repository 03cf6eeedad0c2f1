package main

import (
	"strings"
	"testing"
)

func TestExpand(t *testing.T) {
	for _, r := range []struct{ left, right, want string }{
		{"90", "nop", "90=nop"},
		{"[70-71]", "j{o,no} Jb", "70=jo Jb 71=jno Jb"},
		{"58 [np 66]", "add{ps,pd} V", "58 np=addps V 58 66=addpd V"},
		{"80 [/0,7]", "{add,cmp} {+,}Eb", "80 /0=add +Eb 80 /7=cmp Eb"},
		{"D9 [@0-1]", "f{chs,abs}", "D9 @0=fchs D9 @1=fabs"},
	} {
		lines, err := expand(r.left, r.right)
		if err != nil {
			t.Errorf("%s: %v", r.left, err)
			continue
		}
		var have []string
		for _, l := range lines {
			have = append(have, l[0]+"="+l[1])
		}
		if s := strings.Join(have, " "); s != r.want {
			t.Errorf("%s : %s gives %q, want %q", r.left, r.right, s, r.want)
		}
	}
}

// TestMistakes: what gen must not let pass.
func TestMistakes(t *testing.T) {
	for _, r := range []struct{ text, want string }{
		{"90 : nop", "before the first map"},
		{"map none\n90 : nop", "unknown map"},
		{"map one\n90 nop", "without a colon"},
		{"map one\n90 :", "without a colon"},
		{"map one\nGG : nop", "invalid syntax"},
		{"map one\n90 zz : nop", "bad condition"},
		{"map one\n90 : nop Qq", "unknown operand"},
		{"map one\n90 : nop Ex", "bad size"},
		{"map one\n90 : nop ; fast", "unknown attribute"},
		{"map one\n90 : nop ; n=3", "bad attribute"},
		{"map one\n90 : nop Ib Iz", "no layout"},
		{"map one\n[90-91] : nop{a,b,c}", "has 3 elements, the list 2"},
		{"flags f w=C\nflags g w=Z\nmap one\n90 : nop ; f g", "two flag classes"},
		{"flags f w=Q", "unknown flag letter"},
		{"map one\n90 : nop\n90 f3 : pause", "hidden by earlier rows"},
	} {
		_, err := generate("text", r.text)
		if err == nil || !strings.Contains(err.Error(), r.want) {
			t.Errorf("%q: %v, want %q", r.text, err, r.want)
		}
	}
}
