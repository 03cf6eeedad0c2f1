package image

import (
	"testing"

	"trapless/internal/testkit"
)

// To look for words first finds what demangling all names finds.
func TestWordsLoseNothing(t *testing.T) {
	for _, path := range []string{"/usr/lib/x86_64-linux-gnu/libstdc++.so.6", testkit.Compile(t, "names.cpp")} {
		fs, err := open(t, path).Functions()
		if err != nil {
			t.Fatal(err)
		}
		for _, pattern := range []string{"std::*", "std::basic_string*", "*string*", "*insert*", "std::__cxx11::*", "*::~*", "operator new*", "*allocator*", "std::str*",
			"__gnu_cxx::*", "*::do_get*", "ns::*", "*<int>*", "std::ostream*", "*char*", "std::filesystem::path::*", "*(int)", "void *", "*ctype*widen*", "guard*", "*::*::compare*"} {
			want := 0
			for i := range fs.all {
				fn := &fs.all[i]
				if !fn.Entry || fn.Wrapper {
					continue
				}
				for _, name := range fn.Names {
					pretty, ok := fs.full(name)
					if glob(pattern, name) || ok && globPretty(pattern, name, pretty) {
						want++
						break
					}
				}
			}
			if got := len(fs.Match(pattern)); got != want {
				t.Errorf("%s: %s finds %d functions of %d", path, pattern, got, want)
			}
		}
	}
}
