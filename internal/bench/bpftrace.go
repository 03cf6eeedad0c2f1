package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// BpftracePrefix is what the names of bpftrace's variants begin with; what follows is the
// name of the variant that does the same job.
const BpftracePrefix = "bpftrace-"

// Bpftrace makes a variant that lets bpftrace do the job of another one: probes are
// those of its script, in which $FUNCTION stands for the path and the name of the function. If
// its map @ counts hits, they are checked.
func Bpftrace(v Variant, probes string, counts bool) Variant {
	v.Arm = func(pid int) (Armed, error) { return armBpftrace(pid, v.Function, probes, counts) }
	v.Name = BpftracePrefix + v.Name
	v.Rounds, v.Batch = 3, 0 // it takes a second to start
	return v
}

// ErrNoBpftrace is why bpftrace's variants are left out.
var ErrNoBpftrace = errors.New("bpftrace is not installed (Debian: apt-get install bpftrace)")

// attachTime bounds how long bpftrace may take to put its probes in.
const attachTime = 20 * time.Second

func armBpftrace(pid int, function, probes string, counts bool) (Armed, error) {
	path, err := exec.LookPath("bpftrace")
	if err != nil {
		return Armed{}, ErrNoBpftrace
	}
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil {
		return Armed{}, err
	}
	probes = strings.ReplaceAll(probes, "$FUNCTION", exe+":"+Probed(function))
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, path, "-p", strconv.Itoa(pid), "-e", probes)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = attachTime
	out, err := cmd.StdoutPipe()
	if err != nil {
		cancel()
		return Armed{}, err
	}
	var complaints strings.Builder
	cmd.Stderr = &complaints
	if err := cmd.Start(); err != nil {
		cancel()
		return Armed{}, err
	}
	b := &tracer{cmd: cmd, stop: cancel, counted: make(chan uint64, 1)}
	go b.read(out)
	if err := awaitBreakpoint(pid, exe, Probed(function)); err != nil {
		return Armed{}, errors.Join(fmt.Errorf("%w: %s", err, strings.TrimSpace(complaints.String())), b.end())
	}
	armed := Armed{Disarm: b.end}
	if counts {
		armed.Hits = b.hits
	}
	return armed, nil
}

// Probed is the function that is probed when another one is called.
func Probed(function string) string {
	if strings.HasPrefix(function, "name_") {
		return "named"
	}
	return function
}

// tracer is a bpftrace that runs.
type tracer struct {
	cmd     *exec.Cmd
	stop    func()
	counted chan uint64 // the sum of @, at the end
	ended   bool
}

// read adds up the values of the map @ that bpftrace prints when it ends.
func (b *tracer) read(out io.Reader) {
	lines, sum := bufio.NewScanner(out), uint64(0)
	for lines.Scan() {
		if name, value, ok := strings.Cut(lines.Text(), ": "); ok && strings.HasPrefix(name, "@") {
			n, _ := strconv.ParseUint(value, 10, 64)
			sum += n
		}
	}
	b.counted <- sum
}

func (b *tracer) hits() (uint64, error) {
	n, err := b.finish()
	return n, err
}

func (b *tracer) end() error {
	_, err := b.finish()
	return err
}

// finish lets it print its maps and end.
func (b *tracer) finish() (uint64, error) {
	if b.ended {
		return 0, nil
	}
	b.ended = true
	b.stop()
	n := <-b.counted
	err := b.cmd.Wait()
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	return n, err
}

// awaitBreakpoint waits until the kernel has put a breakpoint at a function.
func awaitBreakpoint(pid int, exe, function string) error {
	at, err := offsetOf(exe, function)
	if err != nil {
		return err
	}
	for end := time.Now().Add(attachTime); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		first, err := firstByte(pid, exe, at)
		if err != nil {
			return err
		}
		if first == 0xcc {
			time.Sleep(200 * time.Millisecond) // another probe at the same place may follow
			return nil
		}
	}
	return errors.New("bpftrace has put no breakpoint in")
}

// firstByte reads a byte of a file's text in a process.
func firstByte(pid int, exe string, offset uint64) (byte, error) {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return 0, err
	}
	for _, line := range strings.Split(string(maps), "\n") {
		f := strings.Fields(line)
		if len(f) < 6 || f[5] != exe {
			continue
		}
		from, to, _ := strings.Cut(f[0], "-")
		start, _ := strconv.ParseUint(from, 16, 64)
		end, _ := strconv.ParseUint(to, 16, 64)
		off, _ := strconv.ParseUint(f[2], 16, 64)
		if offset < off || offset-off >= end-start {
			continue
		}
		mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
		if err != nil {
			return 0, err
		}
		defer mem.Close()
		var b [1]byte
		_, err = mem.ReadAt(b[:], int64(start+offset-off))
		return b[0], err
	}
	return 0, fmt.Errorf("%s is not mapped in process %d", exe, pid)
}
