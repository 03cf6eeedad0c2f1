package debuginfo

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path"
	"strings"
	"testing"

	"trapless/internal/image"
	"trapless/internal/testkit"
)

// open opens a program.
func openProgram(t *testing.T, name string) *image.File {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	img, err := image.New(f, st.Size())
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// Lines and inlined functions are those that addr2line tells, at addresses of all functions that have lines.
func TestPlaces(t *testing.T) {
	addr2line := testkit.Command(t, "addr2line", "binutils")
	inlined := 0
	for _, flags := range []testkit.Flags{nil, {"-gdwarf-4"}, testkit.NoPIE} {
		program := testkit.Compile(t, "busy.c", flags)
		img := openProgram(t, program)
		places := NewPlaces("", program, img)
		if places == nil {
			t.Fatal("there is no debug information")
		}
		defer places.Close()
		var addrs []string
		var got []string
		for _, u := range places.units {
			for at := u.low; at < u.high; at += 7 {
				var lines []string
				for _, p := range places.At(image.VAddr(at)) {
					lines = append(lines, fmt.Sprintf("%s %s:%d", p.Inlined, path.Base(p.File), p.Line))
					if p.Inlined != "" {
						inlined++
					}
				}
				if len(lines) > 0 {
					addrs, got = append(addrs, fmt.Sprintf("%#x", at)), append(got, strings.Join(lines, "\n"))
				}
			}
		}
		cmd := exec.Command(addr2line, "-i", "-a", "-f", "-e", program)
		cmd.Stdin = strings.NewReader(strings.Join(addrs, "\n"))
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		compare(t, addrs, got, out)
	}
	if inlined == 0 {
		t.Error("nothing is inlined in the program")
	}
}

// compare compares with what addr2line prints: a line with the address, and pairs of lines with function and place. The
// last function is the one that is not inlined.
func compare(t *testing.T, addrs, got []string, out []byte) {
	t.Helper()
	all := strings.Split(string(bytes.TrimSpace(out)), "\n0x")
	if len(all) != len(got) || len(got) < 100 {
		t.Fatalf("%d addresses, addr2line tells of %d", len(got), len(all))
	}
	for i, block := range all {
		lines := strings.Split(block, "\n")[1:]
		var want []string
		for k := 0; k+1 < len(lines); k += 2 {
			name := lines[k]
			if k+3 >= len(lines) {
				name = ""
			}
			where, _, _ := strings.Cut(path.Base(lines[k+1]), " (")
			want = append(want, name+" "+where)
		}
		if w := strings.Join(want, "\n"); got[i] != w && !strings.Contains(w, "?") {
			t.Errorf("%s is %q, want %q", addrs[i], got[i], w)
		}
	}
}
