package session

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"trapless/internal/abi"
	"trapless/internal/proc"
	"trapless/internal/unix"
)

// jitSymbols are the names that a program which makes code at run time writes down for profilers: lines of a
// start, a size, both in hexadecimal, and a name, in /tmp/perf-PID.map
// (tools/perf/Documentation/jit-interface.txt of the kernel).
type jitSymbols struct {
	pid  int
	file string // its name, as the target has it
	read int64  // bytes of it that were read
	list []jitSymbol
}

type jitSymbol struct {
	abi.Range
	name string
}

// maxJITMap bounds how much of the file is read, in bytes.
const maxJITMap = 64 << 20

// find names an address. The file is read again when it has grown.
func (j *jitSymbols) find(at abi.Addr) (name string, start abi.Addr, ok bool) {
	j.update()
	for i := range slices.Backward(j.list) { // code is written over code: the last line holds
		if s := &j.list[i]; s.Contains(at) {
			return s.name, s.Start, true
		}
	}
	return "", 0, false
}

func (j *jitSymbols) update() {
	number := j.pid
	if st, err := proc.ReadStatus(j.pid, j.pid); err == nil && len(st.NSpid) > 0 {
		number = st.NSpid[len(st.NSpid)-1]
	}
	if j.file == "" {
		j.file = fmt.Sprintf("/tmp/perf-%d.map", number)
	}
	f, err := unix.OpenNow(proc.Path(j.pid, "root") + j.file)
	if err != nil {
		f, err = unix.OpenNow(j.file)
	}
	if err != nil {
		return // the program makes no code, or does not write it down
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() || st.Size() <= j.read || j.read >= maxJITMap || !j.believes(st) {
		return
	}
	if _, err := f.Seek(j.read, io.SeekStart); err == nil {
		j.parse(io.LimitReader(f, maxJITMap-j.read))
	}
}

// believes reports whether a file is the program's own, ours or root's: everybody may write to /tmp.
func (j *jitSymbols) believes(st os.FileInfo) bool {
	owner := int(st.Sys().(*syscall.Stat_t).Uid)
	if owner == 0 || owner == os.Getuid() {
		return true
	}
	process, err := proc.ReadStatus(j.pid, j.pid)
	return err == nil && slices.Contains(process.UID[:], owner)
}

// parse reads whole lines. What is no such line is passed over.
func (j *jitSymbols) parse(r io.Reader) {
	in := bufio.NewReader(r)
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return // the last line is not whole yet
		}
		j.read += int64(len(line))
		start, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		size, name, ok := strings.Cut(rest, " ")
		first, err1 := strconv.ParseUint(strings.TrimPrefix(start, "0x"), 16, 64)
		length, err2 := strconv.ParseUint(strings.TrimPrefix(size, "0x"), 16, 64)
		if ok && err1 == nil && err2 == nil && first+length > first {
			j.list = append(j.list, jitSymbol{abi.Range{Start: abi.Addr(first), End: abi.Addr(first + length)}, name})
		}
	}
}
