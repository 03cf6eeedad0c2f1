package inject

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"trapless/internal/abi"
	"trapless/internal/proc"
)

// ErrText marks text that is not what it has to be for a patch, or for taking
// one out again. Nothing is written over such text.
var ErrText = errors.New("text is not as expected")

// Text is a mapping of a file's text. It is the same as long as the file is mapped
// at the same distance.
type Text struct {
	inode        uint64
	major, minor uint32
	bias         abi.Addr // of addresses against offsets in the file
}

// TextOf is the text that a mapping is of.
func TextOf(m *proc.Mapping) Text {
	return Text{m.Inode, m.Major, m.Minor, m.Start - abi.Addr(m.Offset)}
}

// stands reports whether a mapping is the one that a detour's patch is for: a library
// may have been unloaded, and another one loaded there.
func (d *Detour) stands(m *proc.Mapping) bool { return m != nil && m.File() && TextOf(m) == d.text }

// files reads the files behind a target's mappings, each opened once.
type files struct {
	pid  int
	open map[fileKey]*os.File
}

// fileKey is a mapping of a file.
type fileKey struct {
	start        abi.Addr
	inode        uint64
	major, minor uint32
}

func newFiles(pid int) *files { return &files{pid: pid, open: map[fileKey]*os.File{}} }

func (f *files) Close() {
	for _, file := range f.open {
		file.Close()
	}
	clear(f.open)
}

// read returns what the file behind the mappings holds for n bytes at an
// address. Every byte has to lie in private, executable mappings of files.
func (f *files) read(maps proc.Maps, at abi.Addr, n int) ([]byte, error) {
	out := make([]byte, 0, n)
	for len(out) < n {
		a := at + abi.Addr(len(out))
		m := maps.Find(a)
		switch {
		case m == nil:
			return nil, fmt.Errorf("%w: %s is not mapped", ErrText, a)
		case !m.File() || m.Perm&proc.Exec == 0:
			return nil, fmt.Errorf("%w: %s is not the text of a file", ErrText, a)
		case m.Perm&proc.Shared != 0:
			return nil, fmt.Errorf("%w: %s is mapped shared, so a patch would reach other processes", ErrText, a)
		}
		part := make([]byte, min(n-len(out), int(m.End-a)))
		if err := f.readAt(m, part, a); err != nil {
			return nil, err
		}
		out = append(out, part...)
	}
	return out, nil
}

func (f *files) readAt(m *proc.Mapping, p []byte, a abi.Addr) error {
	key := fileKey{m.Start, m.Inode, m.Major, m.Minor}
	file := f.open[key]
	if file == nil {
		var err error
		if file, err = proc.OpenMapped(f.pid, m); err != nil {
			return err
		}
		f.open[key] = file
	}
	_, err := file.ReadAt(p, int64(m.Offset)+int64(a-m.Start))
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: %s lies behind the end of %s", ErrText, a, m.Path)
	}
	return err
}

// between reports whether cur may be what a killed tracer left on the way from
// old to new or back: each byte is that of one of them, or the breakpoint that
// stands at the first byte meanwhile.
func between(cur, old, new []byte) bool {
	if len(cur) != len(old) || len(cur) != len(new) {
		return false
	}
	for i, b := range cur {
		if b != old[i] && b != new[i] && !(i == 0 && b == breakpoint) {
			return false
		}
	}
	return true
}

// original is what text that is cur has to become when a patch is taken out. It
// reports false for what is not that patch's work: a library was unloaded, and
// something else was loaded there.
func original(at abi.Addr, cur, old, patched []byte) ([]byte, bool) {
	if !between(cur, old, patched) {
		return nil, false
	}
	want := bytes.Clone(old)
	if cur[0] == breakpoint && old[0] != breakpoint && patched[0] != breakpoint && onePage(at, len(old)) {
		// Ours stands only in windows that cross a page, or that are boosted.
		// This one is a kernel uprobe's, whose owner puts the original byte back.
		want[0] = breakpoint
	}
	return want, true
}

// blockSize is how much a blockReader reads at once, in bytes.
const blockSize = 64 << 10

// blockReader reads what files hold for addresses that ascend, by few large reads.
type blockReader struct {
	files *files
	maps  proc.Maps
	start abi.Addr
	block []byte
}

// read is files.read.
func (b *blockReader) read(at abi.Addr, n int) ([]byte, error) {
	if end := b.start + abi.Addr(len(b.block)); at < b.start || at+abi.Addr(n) > end {
		b.block = nil
		if m := b.maps.Find(at); m != nil {
			b.start = at
			b.block, _ = b.files.read(b.maps, at, int(min(blockSize, uint64(m.End-at)))) // else piece by piece
		}
		if n > len(b.block) {
			return b.files.read(b.maps, at, n)
		}
	}
	return b.block[at-b.start:][:n], nil
}

// writeText changes text from cur to want. Precondition: all threads of the
// target are stopped. A change within one page is one copy in the kernel, which
// a killed tracer still finishes; one that crosses a page goes through a
// breakpoint, which the boundary handler knows.
func writeText(mem textWriter, at abi.Addr, cur, want []byte) error {
	if bytes.Equal(cur, want) {
		return nil
	}
	if onePage(at, len(want)) {
		return mem.WriteText(want, at)
	}
	for _, step := range []struct {
		at   abi.Addr
		text []byte
	}{{at, []byte{breakpoint}}, {at + 1, want[1:]}, {at, want[:1]}} {
		if err := mem.WriteText(step.text, step.at); err != nil {
			return err
		}
	}
	return nil
}

// onePage reports whether n bytes at an address lie in one page.
func onePage(at abi.Addr, n int) bool {
	return at.PageDown() == (at + abi.Addr(n) - 1).PageDown()
}

// breakpoint is int3.
const breakpoint = 0xcc

// textWriter writes to text that is mapped without write permission.
type textWriter interface {
	WriteText(p []byte, at abi.Addr) error
}
