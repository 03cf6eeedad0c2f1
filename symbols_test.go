package trapless_test

import (
	"debug/elf"
	"testing"

	"trapless/internal/lang"
)

// symbols are the functions of a file that an attach point's pattern names.
func symbols(t *testing.T, a *lang.AttachPoint) []string {
	t.Helper()
	f, err := elf.Open(a.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	all, err := f.Symbols()
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, s := range all {
		if elf.ST_TYPE(s.Info) == elf.STT_FUNC && s.Section != elf.SHN_UNDEF && a.Match(s.Name) {
			out = append(out, s.Name)
		}
	}
	return out
}
