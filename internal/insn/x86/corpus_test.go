package x86

import (
	"debug/elf"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// corpusFile is a program or library whose code tests decode.
type corpusFile struct {
	path string
	base uint64 // address of .text
	text []byte
}

// corpus opens those real binaries that this machine has.
func corpus(t *testing.T) []corpusFile {
	lib := "/usr/lib/x86_64-linux-gnu/"
	paths := []string{lib + "libc.so.6", lib + "libm.so.6", lib + "libstdc++.so.6", lib + "libcrypto.so.3",
		filepath.Join(runtime.GOROOT(), "bin", "go")}
	if p, err := exec.LookPath("node"); err == nil {
		paths = append(paths, p)
	}
	// python3 may be a script in front of a small program that loads a library.
	const ask = "import sys, sysconfig; print(sys.executable, sysconfig.get_config_var('LIBDIR') + '/' + sysconfig.get_config_var('INSTSONAME'))"
	if p, err := exec.Command("python3", "-c", ask).Output(); err == nil {
		paths = append(paths, strings.Fields(string(p))...)
	}
	if cc1, err := filepath.Glob("/usr/lib/gcc/x86_64-linux-gnu/*/cc1"); err == nil {
		paths = append(paths, cc1...)
	}
	var files []corpusFile
	for _, p := range paths {
		f, err := openCorpus(p)
		if err != nil {
			t.Logf("left out: %v", err)
			continue
		}
		files = append(files, f)
	}
	if len(files) == 0 {
		t.Skip("no ELF x86-64 binary to decode")
	}
	return files
}

func openCorpus(path string) (corpusFile, error) {
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return corpusFile{}, err
	}
	if _, err := os.Stat(path); err != nil {
		return corpusFile{}, err
	}
	f, err := elf.Open(path)
	if err != nil {
		return corpusFile{}, err // a script, perhaps
	}
	defer f.Close()
	s := f.Section(".text")
	if f.Machine != elf.EM_X86_64 || s == nil {
		return corpusFile{}, &elf.FormatError{}
	}
	text, err := s.Data()
	return corpusFile{path, s.Addr, text}, err
}

// windows are the parts of .text to look at: all of it in a long run, else some
// of the given size, as far as there are so many.
func (f *corpusFile) windows(n, size int) [][2]int {
	if long() || len(f.text) <= n*size {
		return [][2]int{{0, len(f.text)}}
	}
	r := rand.New(rand.NewSource(int64(len(f.text))))
	var w [][2]int
	for range n {
		start := r.Intn(len(f.text)-size) &^ 15 // functions start at multiples of 16
		w = append(w, [2]int{start, start + size})
	}
	return w
}

// TestCorpusByZydis sweeps through real code and compares every instruction's
// parts and effects with Zydis.
func TestCorpusByZydis(t *testing.T) {
	for _, f := range corpus(t) {
		t.Run(filepath.Base(f.path), func(t *testing.T) {
			j := newJudge(t)
			z := startZydis(t, j.check)
			for _, w := range f.windows(4, 1<<16) {
				for pos := w[0]; pos < w[1]; {
					b := f.text[pos:min(pos+MaxLen, len(f.text))]
					z.ask(t, Mode64, b)
					i, _ := Decode(b, Mode64)
					pos += max(1, int(i.Len))
				}
			}
			z.flush(t)
			j.report(z.asked)
		})
	}
}
