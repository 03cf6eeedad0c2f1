package lang

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"trapless/internal/testkit"
)

// randomStruct writes the fields of a struct or union, and returns them with the
// names of those that can be asked for.
func randomStruct(r *rand.Rand, prefix string, depth int) (text string, names []string) {
	types := []string{"char", "unsigned char", "short", "unsigned short", "int", "unsigned int", "long", "unsigned long long", "_Bool", "void *", "double", "enum e"}
	var b strings.Builder
	for i := range 1 + r.IntN(6) {
		name := fmt.Sprintf("%s%d", prefix, i)
		t := types[r.IntN(len(types))]
		switch k := r.IntN(10); {
		case k < 4:
			fmt.Fprintf(&b, "%s %s;\n", t, name)
		case k < 5:
			fmt.Fprintf(&b, "%s %s[%d];\n", t, name, 1+r.IntN(5))
		case k < 6 && t != "void *":
			fmt.Fprintf(&b, "%s *%s, (*%sf)(int), %sm[2][3];\n", t, name, name, name)
		case k < 8 && t != "void *" && t != "double" && t != "enum e" && t != "_Bool":
			for j := range 1 + r.IntN(4) {
				fmt.Fprintf(&b, "%s %sb%d : %d;\n", t, name, j, 1+r.IntN(8))
			}
			continue
		case k < 9 && depth > 0:
			inner, _ := randomStruct(r, name+"x", depth-1)
			fmt.Fprintf(&b, "%s { %s } %s;\n", []string{"struct", "union"}[r.IntN(2)], inner, name)
		default:
			fmt.Fprintf(&b, "%s %s;\n", t, name)
		}
		names = append(names, name)
	}
	return b.String(), names
}

// TestLayoutsOfC lays random structs out and asks a C compiler for the sizes, the
// offsets and the bits of bit-fields.
func TestLayoutsOfC(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	var defs, asks, script strings.Builder
	defs.WriteString("enum e { A, B = 70000 };\n")
	script.WriteString("begin {\n")
	for i := range 60 {
		fields, names := randomStruct(r, "f", 2)
		packed := ""
		if r.IntN(5) == 0 {
			packed = " __attribute__((packed))"
		}
		keyword := []string{"struct", "struct", "struct", "union"}[r.IntN(4)]
		fmt.Fprintf(&defs, "%s s%d { %s }%s;\n", keyword, i, fields, packed)
		fmt.Fprintf(&asks, "printf(\"%%zu\\n\", sizeof(%s s%d));\n", keyword, i)
		fmt.Fprintf(&script, "print(sizeof(%s s%d));\n", keyword, i)
		for _, n := range names {
			fmt.Fprintf(&asks, "printf(\"%%zu\\n\", __builtin_offsetof(%s s%d, %s));\n", keyword, i, n)
			fmt.Fprintf(&script, "print(offsetof(%s s%d, %s));\n", keyword, i, n)
		}
	}
	script.WriteString("}")
	source := filepath.Join(t.TempDir(), "layouts.c")
	if err := os.WriteFile(source, []byte("#include <stdio.h>\n"+defs.String()+"int main(void) {\n"+asks.String()+"}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(testkit.CompileFile(t, source)).Output()
	if err != nil {
		t.Fatal(err)
	}
	s := mustCompile(t, defs.String()+script.String(), Options{})
	want := strings.Fields(string(out))
	if len(want) != len(s.Actions) {
		t.Fatalf("%d answers to %d questions", len(want), len(s.Actions))
	}
	for i, a := range s.Actions {
		if got := fmt.Sprint(a.Args[0].Value.Int); got != want[i] {
			t.Errorf("%s = %s, want %s", s.Source.Slice(a.Span), got, want[i])
		}
	}
}

// TestBitFieldsOfC reads bit-fields that a C compiler has written.
func TestBitFieldsOfC(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	var defs, sets strings.Builder
	var scripts, wants []string
	for i := range 40 {
		var fields, values, prints, want []string
		for j := range 2 + r.IntN(8) {
			typ := []string{"int", "unsigned int", "unsigned char", "long", "unsigned short"}[r.IntN(5)]
			width := 1 + r.IntN(map[string]int{"int": 32, "unsigned int": 32, "unsigned char": 8, "long": 40, "unsigned short": 16}[typ])
			v := r.Int64()
			fields = append(fields, fmt.Sprintf("%s b%d : %d;", typ, j, width))
			values = append(values, fmt.Sprintf("v.b%d = %dl;", j, v))
			prints = append(prints, fmt.Sprintf("print((int64)$p.b%d);", j))
			cut := uint64(v) << (64 - width)
			if strings.HasPrefix(typ, "unsigned") {
				want = append(want, fmt.Sprintf("print %d", cut>>(64-width)))
			} else {
				want = append(want, fmt.Sprintf("print %d", int64(cut)>>(64-width)))
			}
		}
		def := fmt.Sprintf("struct s%d { %s };\n", i, strings.Join(fields, " "))
		defs.WriteString(def)
		fmt.Fprintf(&sets, "{ struct s%d v; memset(&v, 0, sizeof v); %s char b[64] = {0}; memcpy(b, &v, sizeof v); fwrite(b, 1, 64, stdout); }\n", i, strings.Join(values, " "))
		scripts = append(scripts, def+fmt.Sprintf("uprobe:a:f { $p = (struct s%d *)arg0; %s }", i, strings.Join(prints, " ")))
		wants = append(wants, strings.Join(want, "; "))
	}
	source := filepath.Join(t.TempDir(), "bits.c")
	text := "#include <stdio.h>\n#include <string.h>\n" + defs.String() + "int main(void) {\n" + sets.String() + "}\n"
	if err := os.WriteFile(source, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(testkit.CompileFile(t, source, testkit.Flags{"-w"})).Output()
	if err != nil || len(out) != 64*len(scripts) {
		t.Fatalf("%v, %d bytes", err, len(out))
	}
	for i, script := range scripts {
		b := newBench(t, script, Options{})
		b.machine.ReadUser = func(addr uint64, buf []byte) bool {
			copy(buf, bytes.Clone(out[64*i:])[addr-0x1000:])
			return true
		}
		if got := b.run(0, 0x1000); got != wants[i] {
			t.Errorf("%s\ngot  %s\nwant %s", script, got, wants[i])
		}
	}
}
