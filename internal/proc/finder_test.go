package proc

import (
	"os"
	"testing"

	"trapless/internal/abi"
)

// TestFinder compares single answers with the list.
func TestFinder(t *testing.T) {
	pid := os.Getpid()
	asked, err := NewFinder(pid)
	if err != nil {
		t.Fatal(err)
	}
	defer asked.Close()
	if asked.f == nil {
		t.Log("this kernel answers no questions about mappings (PROCMAP_QUERY, Linux 6.11)")
	}
	maps, err := ReadMaps(pid)
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for i := range maps {
		want := maps[i]
		if !want.File() {
			continue // they may have changed meanwhile
		}
		seen++
		want.Path, want.Deleted = "", false
		for _, at := range []uint64{0, want.Len() / 2, want.Len() - 1} {
			m := asked.Find(want.Start + abi.Addr(at))
			if m == nil {
				t.Fatalf("%v: nothing found", want)
			}
			got := *m
			got.Path, got.Deleted = "", false
			if got != want {
				t.Errorf("found %+v, want %+v", got, want)
			}
		}
	}
	if seen == 0 {
		t.Error("no files are mapped")
	}
	if m := asked.Find(0x1000); m != nil {
		t.Errorf("at 0x1000 there is %+v", *m)
	}
}
