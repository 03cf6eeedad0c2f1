package elfplan

import (
	"os/exec"
	"strings"
	"testing"

	"trapless/internal/image"
	"trapless/internal/testkit"
)

// TestEntriesWithoutNames: in a stripped file no part of a function is taken for
// a function, and most functions are known to be some. (The others are not
// called in this program, as half a static library is not, or are jumped to in
// place of a return.)
func TestEntriesWithoutNames(t *testing.T) {
	for _, flags := range []testkit.Flags{testkit.Static, {"-static-pie", "-fPIE"}} {
		path := testkit.Compile(t, "unwind.cpp", flags)
		stripped := t.TempDir() + "/stripped"
		if out, err := exec.Command(testkit.Command(t, "strip", "binutils"), "-o", stripped, path).CombinedOutput(); err != nil {
			t.Fatalf("strip: %v\n%s", err, out)
		}
		whole, m := load(t, path, 0), load(t, stripped, 0)
		functions, found, parts := 0, 0, 0
		for _, fn := range whole.Funcs.All() {
			if other, ok := m.Funcs.At(fn.Start); !ok || other.Start != fn.Start || fn.Bounds != image.Stated {
				continue // the unwind table does not know it
			}
			cold := strings.Contains(fn.Name(), ".cold")
			entry := m.function(t, fn.Start).Entry
			switch {
			case cold && entry:
				t.Errorf("%v: %s is taken for a function", flags, fn.Name())
			case cold:
				parts++
			case entry:
				functions++
				found++
			default:
				functions++
			}
		}
		t.Logf("%v: %d of %d functions are known; %d parts", flags, found, functions, parts)
		if parts < 50 || found < functions/2 {
			t.Errorf("%v: %d of %d functions, %d parts", flags, found, functions, parts)
		}
	}
}
