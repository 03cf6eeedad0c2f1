package lang

import (
	"strings"
	"testing"

	"trapless/internal/usdt"
)

// hundredLines is a script of 100 lines with what scripts have.
func hundredLines() string {
	var b strings.Builder
	b.WriteString("struct pair { int first; char text[16]; struct pair *next; };\nmacro twice(x) { x * 2 }\nfn add($a : int64, $b : int64) : int64 { return $a + $b; }\n")
	for i := range 16 {
		f := "function" + string(rune('a'+i))
		b.WriteString("uprobe:libc:" + f + " /arg0 > 5 && comm != \"bash\"/ {\n" +
			"\t@start[tid] = nsecs; @calls[comm, arg1] = count();\n" +
			"\t$p = (struct pair *)arg0; $s = str(arg1); @text[$p.first] = ($s, $p.next.first);\n" +
			"\tif ($s == \"/etc/passwd\" || strncmp($s, \"/tmp\", 4) == 0) { printf(\"%s %d %s\\n\", $s, twice($p.first), $p.text); }\n}\n" +
			"uretprobe:libc:" + f + " { @time = hist(nsecs - @start[tid]); delete(@start, tid); @sum = sum(add(retval, 1)); }\n")
	}
	b.WriteString("interval:s:1 { for ($kv : @calls) { print($kv); } clear(@calls); }\n")
	return b.String()
}

// BenchmarkHundredLines compiles a script of 100 lines.
func BenchmarkHundredLines(b *testing.B) {
	src := hundredLines()
	if n := strings.Count(src, "\n"); n != 100 {
		b.Fatalf("%d lines", n)
	}
	for b.Loop() {
		if _, err := Compile(src, "bench", Options{}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkVerify verifies the programs of the script.
func BenchmarkVerify(b *testing.B) {
	s := mustCompile(b, hundredLines(), Options{})
	for b.Loop() {
		for _, p := range s.Probes {
			if _, err := usdt.Verify(p.Prog); err != nil {
				b.Fatal(err)
			}
		}
	}
}
