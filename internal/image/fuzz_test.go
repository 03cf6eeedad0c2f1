package image

import (
	"bytes"
	"os"
	"testing"

	"trapless/internal/abi"
	"trapless/internal/testkit"
)

// Whatever a file holds, reading it ends without a panic, in memory bounded by the file's size, and gives
// functions that lie in the file's executable part.
func FuzzFile(f *testing.F) {
	f.Add(smallELF())
	f.Add(smallGo())
	small := testkit.Flags{"-g0", "-nostdlib", "-nostartfiles", "-Wl,-z,noseparate-code", "-Wl,-z,norelro", "-Wl,-N"}
	for _, flags := range []testkit.Flags{testkit.Static, {"-static-pie", "-fPIE"}, testkit.Shared, {"-static", "-s"}} {
		b, err := os.ReadFile(testkit.CompileFile(f, "testdata/tiny.c", small, flags))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		file, err := New(bytes.NewReader(b), int64(len(b)))
		if err != nil {
			return
		}
		useFile(file)
		fs, err := file.Functions()
		if err != nil {
			return
		}
		if n := len(fs.All()); n > len(b)/8 { // no symbol and no unwind entry is smaller
			t.Errorf("%d functions in %d bytes", n, len(b))
		}
		for i, fn := range fs.All() {
			if fn.End < fn.Start || i > 0 && fs.All()[i-1].Start >= fn.Start {
				t.Fatalf("function %d: %v after %v", i, fn.Range, fs.All()[max(i-1, 0)].Range)
			}
			useFunction(t, fs, fn)
		}
		fs.Match("*a?*")
		fs.Lookup("main")
	})
}

func useFile(file *File) {
	file.Linkage()
	file.Slack()
	file.Criticals()
	file.SignalFrames()
	file.CodePointers()
	if pads, _, err := file.LandingPads(); err == nil && uint64(len(pads)) > shared*file.size {
		panic("more landing pads than their tables can hold")
	}
	for _, s := range file.Segments {
		file.VAddrOf(s.Off)
		file.BiasOf(0x10000, s.Off&^(abi.PageSize-1), s.Exec)
	}
}

func useFunction(t *testing.T, fs *Functions, fn Func) {
	code, err := fs.Code(fn)
	if err != nil || uint64(len(code)) != fn.Len() {
		t.Fatalf("%v: %d bytes of code, %v", fn.Range, len(code), err)
	}
	if body, padding, err := fs.Body(fn); err != nil || !bytes.Equal(body, code) || len(padding) != filling(padding) {
		t.Fatalf("%v: %d bytes and padding %x, %v", fn.Range, len(body), padding, err)
	}
	if at, ok := fs.At(fn.Start); fn.Len() > 0 && (!ok || at.Start != fn.Start) {
		t.Fatalf("at %v: %v", fn.Start, at.Range)
	}
	if fs.Go != nil {
		fs.Go.Depths(fn.Start, func(end VAddr, _ int32) bool {
			if end < fn.Start {
				t.Fatalf("%v: a depth up to %v", fn.Range, end)
			}
			return true
		})
	}
	fs.Inner(fn.Range)
	if next := fs.Next(fn.Start); next < fn.Start {
		t.Fatalf("next of %v is %v", fn.Start, next)
	}
}

func FuzzGlob(f *testing.F) {
	f.Add("std::vector<*>::push_back*", "std::vector<int>::push_back(int)")
	f.Add("a*a*a*a*b", "aaaaaaaaaaaaaaaaaaaaaaaaa")
	f.Fuzz(func(t *testing.T, pattern, name string) {
		glob(pattern, name)
		if len(pattern) < 100 && !glob("*"+pattern+"*", pattern) {
			t.Errorf("%q does not match itself between stars", pattern)
		}
	})
}
