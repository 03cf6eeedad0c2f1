package image

import (
	"bytes"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"trapless/internal/testkit"
)

func TestMarkerArguments(t *testing.T) {
	for text, want := range map[string]MarkerArg{
		"8@%rax":                {Size: 8, Reg: "rax"},
		"-4@%eax":               {Size: 4, Signed: true, Reg: "rax"},
		"2@%r10w":               {Size: 2, Reg: "r10"},
		"1@%r15b":               {Size: 1, Reg: "r15"},
		"4@%r8d":                {Size: 4, Reg: "r8"},
		"-1@%ch":                {Size: 1, Signed: true, Reg: "rcx", Shift: 8},
		"1@%sil":                {Size: 1, Reg: "rsi"},
		"2@%bp":                 {Size: 2, Reg: "rbp"},
		"8f@%xmm3":              {Size: 8, Float: true, Reg: "xmm3"},
		"%rdi":                  {Size: 8, Reg: "rdi"},
		"-4@$-1":                {Size: 4, Signed: true, Kind: ArgConstant, Disp: -1},
		"8@$0xffffffffffffffff": {Size: 8, Kind: ArgConstant, Disp: -1},
		"8@-8(%rbp)":            {Size: 8, Kind: ArgMemory, Base: "rbp", Disp: -8},
		"8@(%rsp)":              {Size: 8, Kind: ArgMemory, Base: "rsp"},
		"4@4(%rax,%r9,8)":       {Size: 4, Kind: ArgMemory, Base: "rax", Index: "r9", Scale: 8, Disp: 4},
		"4@(%rax,%rbx)":         {Size: 4, Kind: ArgMemory, Base: "rax", Index: "rbx", Scale: 1},
		"4@table(,%rdi,4)":      {Size: 4, Kind: ArgMemory, Index: "rdi", Scale: 4, Symbol: "table", Relocated: true},
		"8@a.b+8-4(%rip)":       {Size: 8, Kind: ArgMemory, Disp: 4, Symbol: "a.b", Relocated: true},
		"8@8+_x(%rip)":          {Size: 8, Kind: ArgMemory, Disp: 8, Symbol: "_x", Relocated: true},
		"8@$sym+1":              {Size: 8, Kind: ArgConstant, Disp: 1, Symbol: "sym", Relocated: true},
		"8@0x404040":            {Size: 8, Kind: ArgMemory, Disp: 0x404040, Relocated: true},
	} {
		want.Text = text
		if got := parseMarkerArg(text); got != want {
			t.Errorf("%s: %+v, want %+v", text, got, want)
		}
	}
	for _, text := range []string{"", "8@", "3@%rax", "8@%rxx", "8@%r16", "8@%r1", "8@%xmm16", "8@%fs:8", "8@%fs:(%rax)", "8@(%eax)", "8@4(%rip)",
		"8@(%rax,%rsp)", "8@(%rax,%rbx,3)", "8@(%rax", "8@()", "8@x@GOTPCREL(%rip)", "8@a+b(%rip)", "8@-a(%rip)", "8@(%rip,%rax)", "8@$", "8@%"} {
		if got := parseMarkerArg(text); text != "8@$" && got.Problem == "" {
			t.Errorf("%q is understood: %+v", text, got)
		}
	}
}

// readelf says the same of all places.
func TestMarkersAsReadelf(t *testing.T) {
	readelf := testkit.Command(t, "readelf", "binutils")
	field := regexp.MustCompile(`Provider: (\S*)\n\s*Name: (\S*)\n\s*Location: (0x[0-9a-f]*), Base: \S*, Semaphore: (0x[0-9a-f]*)\n\s*Arguments: ?(.*)\n`)
	for _, path := range []string{testkit.Compile(t, "usdt.c"), testkit.Compile(t, "usdt.c", testkit.NoPIE, testkit.Stripped), "/usr/lib/x86_64-linux-gnu/libstdc++.so.6", "/usr/bin/python3.11"} {
		out, err := exec.Command(readelf, "-nW", path).Output()
		if err != nil {
			t.Logf("%s: not compared: %v", path, err)
			continue
		}
		want := map[string]bool{}
		for _, m := range field.FindAllStringSubmatch(string(out), -1) {
			want[strings.Join(m[1:], " ")] = true
		}
		file := open(t, path)
		markers, err := file.Markers()
		if err != nil {
			t.Fatal(err)
		}
		if len(markers) != len(want) {
			t.Errorf("%s: %d places, readelf has %d", path, len(markers), len(want))
		}
		for _, m := range markers {
			var args []string
			for _, a := range m.Args {
				args = append(args, a.Text)
			}
			text := strings.Join([]string{m.Provider, m.Name, hex18(m.At), hex18(m.Semaphore), strings.Join(args, " ")}, " ")
			if !want[text] {
				t.Errorf("%s: readelf does not have %q", path, text)
			}
		}
	}
}

func hex18(v VAddr) string {
	s := v.String()[2:]
	return "0x" + strings.Repeat("0", 16-len(s)) + s
}

// Whatever notes hold, reading them ends with places in the file's code, or an error that says where.
func FuzzMarkers(f *testing.F) {
	file, err := New(bytes.NewReader(smallELF()), int64(len(smallELF())))
	if err != nil {
		f.Fatal(err)
	}
	at := file.Segments[0].Addr
	for i := range file.Segments {
		if file.Segments[i].Exec {
			at = file.Segments[i].Addr
		}
	}
	note := []byte("\x08\x00\x00\x00\x2e\x00\x00\x00\x03\x00\x00\x00stapsdt\x00")
	for i := range 8 {
		note = append(note, byte(uint64(at)>>(8*i)))
	}
	note = append(note, make([]byte, 16)...)
	note = append(note, "prov\x00name\x00-4@%eax 8@x(%rip)\x00\x00"...)
	f.Add(note)
	f.Fuzz(func(t *testing.T, b []byte) {
		all, err := file.appendMarkers(nil, b)
		if err != nil {
			return
		}
		for _, m := range all {
			if file.executable(m.At) == nil || m.Name == "" {
				t.Errorf("%+v", m)
			}
			for _, a := range m.Args {
				if a.Problem == "" && (a.Size == 0 || a.Kind == ArgRegister && a.Reg == "") {
					t.Errorf("%+v", a)
				}
			}
		}
	})
}
