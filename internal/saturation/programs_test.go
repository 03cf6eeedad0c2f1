package saturation

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"trapless/internal/testkit"
)

// The programs, with small tasks of which they show all results.

var mathLibrary = testkit.Flags{"-Wl,--no-as-needed", "-lm"}

// ours are the programs of testdata/targets that end by themselves.
func ours(t *testing.T) []*program {
	throws, mathematics := testkit.Compile(t, "throws.cpp"), testkit.Compile(t, "mathematics.c", mathLibrary)
	all := []*program{
		{name: "throws", argv: []string{throws, "50"}, modules: []string{"throws*", "libstdc++.so*", "libgcc_s.so*"}},
		{name: "mathematics", argv: []string{mathematics}, modules: []string{"mathematics*", "libm.so*"}},
	}
	for _, flags := range []testkit.Flags{testkit.PIE, testkit.NoPIE, testkit.Static} {
		all = append(all, &program{name: fmt.Sprint("relocated", flags), argv: []string{testkit.Compile(t, "relocated.c", flags), "50"},
			modules: []string{"relocated*"}, small: !slices.Equal(flags, testkit.Static)})
	}
	return all
}

// debian are programs that people run, as Debian ships them.
func debian(t *testing.T) []*program {
	all := append(compressors(t), languages(t)...)
	return append(all, python(t)...)
}

// debianProgram is the file of a program, not a link to it nor another one of
// that name that a version manager has put before it.
func debianProgram(t *testing.T, name, packageName string) string {
	t.Helper()
	if _, err := os.Stat("/usr/bin/" + name); err != nil {
		testkit.RequirePackage(t, packageName)
	}
	path, err := filepath.EvalSymlinks("/usr/bin/" + name)
	if err != nil {
		t.Skipf("needs %s: %v", name, err)
	}
	return path
}

// input writes a file for a program.
func input(t *testing.T, name string, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// text is made of a few hundred words, and some that occur once.
func text(size int) []byte {
	r := rand.New(rand.NewPCG(3, 4))
	var b bytes.Buffer
	for b.Len() < size {
		if word := r.IntN(400); r.IntN(20) > 0 {
			fmt.Fprintf(&b, "%x ", word*word*word)
		} else {
			fmt.Fprintf(&b, "%x\n", r.Uint64())
		}
	}
	return b.Bytes()[:size]
}

// compressors compress and decompress the same text.
func compressors(t *testing.T) []*program {
	plain := text(200 << 10)
	file := input(t, "text", plain)
	packed := map[string]string{} // by program
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := w.Write(plain)
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	packed["gzip"] = input(t, "text.gz", b.Bytes())
	var all []*program
	for _, c := range []struct {
		name, packageName, level, library string
		small                             bool
	}{
		{"gzip", "gzip", "-9", "libc.so.6", false},
		{"bzip2", "bzip2", "-9", "libbz2.so*", true},
		{"xz", "xz-utils", "-6", "liblzma.so*", true},
		{"zstd", "zstd", "-7", "libzstd.so*", false},
	} {
		path := debianProgram(t, c.name, c.packageName)
		if packed[c.name] == "" {
			out, err := exec.Command(path, "-c", file).Output()
			if err != nil {
				t.Fatal(err)
			}
			packed[c.name] = input(t, "text."+c.name, out)
		}
		modules := []string{filepath.Base(path), c.library}
		all = append(all,
			&program{name: c.name, argv: []string{path, c.level, "-c"}, stdin: file, modules: modules, small: c.small},
			&program{name: c.name + " -d", argv: []string{path, "-d", "-c"}, stdin: packed[c.name], modules: modules, small: c.small})
	}
	return all
}

// sqlScript makes, joins, sorts, changes and checks tables.
const sqlScript = `
create table t(id integer primary key, name text, v real);
create index tn on t(name);
with recursive c(x) as (select 1 union all select x+1 from c where x<800)
  insert into t select x, 'n'||(x*7919%300), x*1.5 from c;
select count(*), sum(v), min(name), max(name) from t;
select name, count(*) from t group by name having count(*)>2 order by 2 desc, 1 limit 5;
select a.id from t a join t b on a.name=b.name where a.id<b.id order by a.id desc limit 5;
update t set v = v*2 where id%3=0;
delete from t where id%5=0;
select sum(v), avg(v), group_concat(distinct id%7) from t;
select json_extract('{"a":[1,2,{"b":"x"}]}','$.a[2].b'), printf('%08.3f|%s|%x', 3.14159, 'q', 255);
select sum(id) over (order by id rows between 2 preceding and current row) from t limit 5;
select hex(zeroblob(3)), upper('abc'), 'abc' like 'A%', 'abc' glob 'a*', strftime('%Y', 86400*365, 'unixepoch');
begin; delete from t; rollback;
select count(*) from t;
select 1/0, 9223372036854775807 + 1, cast('12abc' as integer), no_such_column;
pragma integrity_check;
`

// document is JSON of all kinds.
func document(t *testing.T) []byte {
	t.Helper()
	r := rand.New(rand.NewPCG(5, 6))
	var make func(depth int) any
	make = func(depth int) any {
		if depth == 0 {
			return []any{nil, true, r.IntN(1 << 30), r.Float64() * 1e10, "text \u00e9\n\t\"\\ \U0001f600", -0.125}[r.IntN(6)]
		}
		if depth%2 == 0 {
			return []any{make(depth - 1), make(depth - 1), make(depth - 1)}
		}
		object := map[string]any{}
		for range 4 {
			object[fmt.Sprint("key ", r.IntN(100))] = make(depth - 1)
		}
		return object
	}
	out, err := json.Marshal(make(5))
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// languages interpret.
func languages(t *testing.T) []*program {
	libm := "libm.so*"
	return []*program{
		{name: "sqlite3", argv: []string{debianProgram(t, "sqlite3", "sqlite3")}, stdin: input(t, "script.sql", []byte(sqlScript)),
			modules: []string{"sqlite3", "libsqlite3.so*", libm}},
		{name: "jq", argv: []string{debianProgram(t, "jq", "jq"), "-S", "(tojson | fromjson) == ., ., [paths | length] | tojson"},
			stdin: input(t, "document.json", document(t)), modules: []string{"jq", "libjq.so*", "libonig.so*", libm}},
		{name: "openssl", argv: []string{debianProgram(t, "openssl", "openssl"), "dgst", "-sha512"}, stdin: input(t, "text", text(100<<10)),
			modules: []string{"openssl", "libcrypto.so*"}},
		{name: "perl", argv: []string{debianProgram(t, "perl", "perl"), "-e", perlScript}, modules: []string{"perl", "libperl.so*"}},
	}
}

const perlScript = `my %h; for (1..2000) { my $s = sprintf("%x", $_*7919%1000); $h{$s}++ if $s =~ /^(\w)\w*\1$/; }
print join(",", map { "$_=$h{$_}" } sort keys %h), "\n"; eval { die { code => 7 } }; print $@->{code}, "\n";
my @a = sort { $b <=> $a } map { $_ ** 1.5 } 1..500; printf("%.6f %s\n", $a[3], pack("NnC", 1, 2, 3) eq "\0\0\0\1\0\2\3");`

// pythonTests are modules of Python's own test suite that need no network, no
// other process and no time.
var pythonTests = []string{"test_textwrap", "test_struct", "test_heapq", "test_bisect", "test_generators", "test_dict", "test_exceptions",
	"test_long", "test_zlib", "test_json.test_decode", "test_json.test_scanstring"}

const pythonScript = `
import sys, unittest, io
for name in sys.argv[1:]:
    suite = unittest.defaultTestLoader.loadTestsFromName("test." + name)
    result = unittest.TextTestRunner(stream=io.StringIO()).run(suite)
    print(name, result.testsRun, len(result.failures), len(result.errors), len(result.skipped))
    for test, text in result.failures + result.errors: print(test, text)
`

// python runs Python on its own test suite, with the interpreter probed, and
// once with the libraries that it uses.
func python(t *testing.T) []*program {
	path := debianProgram(t, "python3", "python3")
	testkit.RequirePackage(t, "lib"+filepath.Base(path)+"-testsuite")
	argv := func(tests ...string) []string { return append([]string{path, "-c", pythonScript}, tests...) }
	all := []*program{{name: "python3 with zlib", argv: argv("test_zlib", "test_json.test_decode"), modules: []string{"libz.so*", "libexpat.so*"}, small: true}}
	for i, test := range pythonTests {
		all = append(all, &program{name: "python3 " + strings.TrimPrefix(test, "test_"), argv: argv(test), modules: []string{filepath.Base(path)}, extra: i > 0})
	}
	return all
}
