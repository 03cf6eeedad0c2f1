package plan

import (
	"bytes"
	"encoding/hex"
	"os"
	"strings"
	"testing"

	"trapless/internal/image"
	insn "trapless/internal/insn/x86"
	"trapless/internal/testkit"
)

func TestFindStackCheck(t *testing.T) {
	for _, row := range []struct {
		name, code string
		want       StackCheck
		ok         bool
	}{
		{"small frame", "493b6610 7603 90 90 c3 e800000000 ebf0", StackCheck{6, 0, 9}, true},
		{"large frame", "4c8da42468f8ffff 4d3b6610 7601 c3 e800000000 ebea", StackCheck{14, 0x798, 15}, true},
		{"huge frame", "4989e4 4981ecb04d0000 7207 4d3b6610 7601 c3 e800000000 ebe6", StackCheck{18, 0x4db0, 19}, true},
		{"assembly", "64488b0c25f8ffffff 483b6110 7601 c3 e800000000 ebe9", StackCheck{15, 0, 16}, true},
		{"position independent assembly", "49c7c6f8ffffff 644d8b36 493b6610 7601 c3 e800000000 ebe7", StackCheck{17, 0, 18}, true},
		{"on the system stack", "493b6618 7601 c3 e800000000 ebf2", StackCheck{6, 0, 7}, true},
		{"comes back elsewhere", "493b6610 7601 c3 e800000000 ebf3", StackCheck{}, false},
		{"does not come back", "493b6610 7601 c3 e800000000 c3", StackCheck{}, false},
		{"without a call", "493b6610 7601 c3 90 ebf6", StackCheck{}, false},
		{"compares something else", "493b6620 7601 c3 e800000000 ebf2", StackCheck{}, false},
		{"no check", "554889e5 c3", StackCheck{}, false},
		{"cut short", "493b66", StackCheck{}, false},
		{"empty", "", StackCheck{}, false},
	} {
		code, err := hex.DecodeString(strings.ReplaceAll(row.code, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		if got, ok := FindStackCheck(code); ok != row.ok || ok && got != row.want {
			t.Errorf("%s: %+v, %v; want %+v, %v", row.name, got, ok, row.want, row.ok)
		}
	}
}

// A function of a Go program has a check exactly if it calls what makes stacks larger.
func TestStackChecksOfWholePrograms(t *testing.T) {
	for name, build := range map[string]testkit.GoBuild{"pure": testkit.PureGo, "PIE": testkit.GoPIE, "cgo PIE": testkit.CGOPIE, "Go 1.19": testkit.OldGo} {
		t.Run(name, func(t *testing.T) {
			source := "goshapes.go"
			if build.CGO {
				source = "gocgo.go"
			}
			text, err := os.ReadFile(testkit.CompileGo(t, source, build))
			if err != nil {
				t.Fatal(err)
			}
			f, err := image.New(bytes.NewReader(text), int64(len(text)))
			if err != nil {
				t.Fatal(err)
			}
			fs, err := f.Functions()
			if err != nil {
				t.Fatal(err)
			}
			checked := 0
			for _, fn := range fs.All() {
				if !fn.Go {
					continue
				}
				code, err := fs.Code(fn)
				if err != nil {
					t.Fatal(err)
				}
				want := callsGrowth(t, fs, fn, code)
				if _, ok := FindStackCheck(code); ok != want {
					t.Errorf("%s: a check: %v, calls morestack: %v", fn.Name(), ok, want)
				}
				if want {
					checked++
				}
			}
			if checked < 500 {
				t.Errorf("only %d functions with a check", checked)
			}
			t.Logf("%d functions with a check", checked)
		})
	}
}

func callsGrowth(t *testing.T, fs *image.Functions, fn image.Func, code []byte) bool {
	for off := 0; off < len(code); {
		in, err := insn.Decode(code[off:], insn.Mode64)
		if err != nil {
			return false
		}
		if to, ok := in.Target(0); ok && in.Branch == insn.BranchCall {
			callee, ok := fs.At(fn.Start + image.VAddr(off) + image.VAddr(to))
			if ok && strings.HasPrefix(callee.Name(), "runtime.morestack") && strings.Count(callee.Name(), ".") < 3 {
				return true
			}
		}
		off += int(in.Len)
	}
	return false
}

func FuzzFindStackCheck(f *testing.F) {
	f.Add([]byte("\x49\x3b\x66\x10\x76\x01\xc3\xe8\x00\x00\x00\x00\xeb\xf2"))
	f.Fuzz(func(t *testing.T, code []byte) {
		if c, ok := FindStackCheck(code); ok && (c.Len <= 0 || c.Grow < c.Len || c.Grow >= len(code) || c.Below < 0) {
			t.Errorf("%+v of %d bytes", c, len(code))
		}
	})
}
