package main

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"trapless/internal/testkit"
)

// refused runs trapless and requires that its first line says what is wrong.
func refused(t *testing.T, status int, want string, args ...string) {
	t.Helper()
	refusedResult(t, runToEnd(t, args...), status, want)
}

func refusedResult(t *testing.T, r result, status int, want string) {
	t.Helper()
	if r.status != status {
		t.Errorf("exit status %d, want %d", r.status, status)
	}
	if r.stdout != "" {
		t.Errorf("stdout: %q", r.stdout)
	}
	line, rest, _ := strings.Cut(r.stderr, "\n")
	inScript := placeInScript.MatchString(line)
	if rest != "" && !inScript && !strings.Contains(rest, "USAGE:") || !inScript && !strings.HasPrefix(line, "ERROR: ") || !strings.Contains(line, want) {
		t.Errorf("stderr: %q\nwant one line with %q", r.stderr, want)
	}
}

// placeInScript begins the errors that show their place.
var placeInScript = regexp.MustCompile(`^\S+:\d+(:\d+)?-\d+: ERROR: `)

func TestBadUsage(t *testing.T) {
	for _, c := range []struct {
		args string // separated by '|'
		want string
	}{
		{"trace|-p|1", "no script: give -e 'SCRIPT' or a file"},
		{"trace|-p|1|-c|ls|-e|BEGIN { }", "-p and -c exclude each other"},
		{"trace|-p|-5|-e|BEGIN { }", "Failed to parse pid: invalid integer: -5"},
		{"trace|-p|five|-e|BEGIN { }", "Failed to parse pid: invalid integer: five"},
		{"trace|-p|1|--duration|-1s|-e|BEGIN { }", "--duration -1s is negative"},
		{"trace|--nonsense", "unknown flag: --nonsense"},
		{"trace|-c|a 'b|-e|BEGIN { }", "a quote or a backslash is not closed"},
		{"trace|--include|stdio.h|-e|BEGIN { }", "headers are not read"},
		{"clean", "give the process with -p PID"},
		{"clean|-p|1|more", `takes no argument "more"`},
		{"nonsense", `unknown command "nonsense"`},
	} {
		t.Run(c.args, func(t *testing.T) {
			t.Parallel()
			refused(t, exitUsage, c.want, strings.Split(c.args, "|")...)
		})
	}
}

func TestBadScript(t *testing.T) {
	p := testkit.Start(t, testkit.Compile(t, "threads.c"), "0")
	check := untouched(t, p.Pid)
	for _, c := range []struct{ script, want string }{
		{"uprobe:libc:malloc { @ = count() ", "ERROR: expected"},
		{"uprobe:libc:malloc { @ = counts(); }", "Unknown function: 'counts'"},
		{"uprobe:libc:malloc { @[kstack] = count(); }", "about the kernel"},
		{"kprobe:vfs_read { @ = count(); }", "kprobe probes are in the kernel"},
		{`uprobe:libc:malloc { @ = 1 + "x"; }`, "The + operator can not be used on expressions of types"},
	} {
		refused(t, exitFailed, c.want, "trace", "-p", strconv.Itoa(p.Pid), "-e", c.script)
	}
	refused(t, exitFailed, "No such file or directory", "trace", "-p", strconv.Itoa(p.Pid), "/nonexistent.bt")
	check()
	p.Stop()
}

func TestBadPlaces(t *testing.T) {
	exe := testkit.Compile(t, "threads.c", testkit.Exported)
	p := testkit.Start(t, exe, "0")
	check := untouched(t, p.Pid)
	dir := t.TempDir()
	text := filepath.Join(dir, "script.py")
	if err := os.WriteFile(text, []byte("#!/bin/sh\necho\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ place, want string }{
		{exe + ":prodeb", `no function "prodeb"; did you mean probed?`},
		{exe + ":nonesuch*", "no function of that pattern"},
		{exe + ":probed+1000", "so there is no offset 1000 in it"},
		{exe + ":probed+1", "not-a-boundary: the instruction there starts at"},
		{exe + ":0x1", "0x1 lies in no known function"},
		{"libc:no_such_function", `no function "no_such_function"`},
		{text + ":main", "is not an ELF file"},
		{dir + ":main", "is a directory"},
		{filepath.Join(dir, "missing") + ":main", "no such file or directory"},
		{program + ":main", "has not mapped"},
		{"libnonesuch:main", "has not mapped \"libnonesuch\"; it has"},
	} {
		refused(t, exitFailed, c.want, "trace", "-p", strconv.Itoa(p.Pid), "-e", "uprobe:"+c.place+" { @ = count(); }")
	}
	check()
	p.Stop()
}

func TestBadCommand(t *testing.T) {
	for _, c := range []struct{ command, want string }{
		{"/nonexistent/program", "no such file or directory"},
		{"no-such-program-anywhere", "executable file not found in $PATH"},
		{"/etc/passwd", "permission denied"},
		{"/bin/cat", `no function "no_such_function"`},
	} {
		refused(t, exitFailed, c.want, "trace", "-c", c.command, "-e", "uprobe:libc:no_such_function { @ = count(); }")
	}
}

// refusedProcess requires that trapless refuses a process, whatever it is asked.
func refusedProcess(t *testing.T, pid int, want string) {
	t.Helper()
	refused(t, exitFailed, want, "trace", "-p", strconv.Itoa(pid), "-e", "uprobe:libc:malloc { @ = count(); }")
	refused(t, exitFailed, want, "clean", "-p", strconv.Itoa(pid))
}

func TestNoProcess(t *testing.T) {
	ended := exec.Command("true")
	if err := ended.Run(); err != nil {
		t.Fatal(err)
	}
	refusedProcess(t, ended.Process.Pid, "no such process")
}

func TestZombie(t *testing.T) {
	cmd := exec.Command("true")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	for deadline := time.Now().Add(testkit.Deadline); ; {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("not a zombie: %q, %v", stat, err)
		}
		if bytes.Contains(stat, []byte(") Z ")) {
			break
		}
	}
	refusedProcess(t, cmd.Process.Pid, "it is a zombie")
}

func TestKernelThread(t *testing.T) {
	const kthreadd = 2
	comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", kthreadd))
	if string(comm) != "kthreadd\n" {
		t.Skip("needs to see kernel threads: this is another pid namespace")
	}
	refusedProcess(t, kthreadd, "it is a kernel thread")
}

func TestThread(t *testing.T) {
	p := testkit.Start(t, testkit.Compile(t, "threads.c"), "1")
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", p.Pid))
	if err != nil || len(tasks) != 2 {
		t.Fatal(tasks, err)
	}
	tid, err := strconv.Atoi(tasks[1].Name())
	if err != nil {
		t.Fatal(err)
	}
	refusedProcess(t, tid, fmt.Sprintf("give its process, %d, instead", p.Pid))
	p.Stop()
}

func TestAlreadyTraced(t *testing.T) {
	p := testkit.StartCommand(t, exec.Command(testkit.Compile(t, "states.c"), "traced"))
	if line := p.Line(); strings.HasPrefix(line, "unavailable") {
		t.Skip(line)
	}
	refusedProcess(t, p.Pid, "it is already traced: by process")
	if changes := testkit.TextChanges(t, p.Pid); len(changes) != 0 {
		t.Error(changes)
	}
	p.Stop()
}

// TestGdbAttached: the message names the debugger, so that one knows what to end.
func TestGdbAttached(t *testing.T) {
	gdb := testkit.Command(t, "gdb", "gdb")
	p := testkit.Start(t, testkit.Compile(t, "threads.c"), "0")
	g := testkit.StartCommand(t, exec.Command(gdb, "-nx", "-q", "-batch-silent", "-p", strconv.Itoa(p.Pid),
		"-ex", "shell echo attached", "-ex", "shell read line", "-ex", "detach"))
	for g.Line() != "attached" {
	}
	refusedProcess(t, p.Pid, "(gdb)")
	g.Kill()
	p.Stop()
}

func TestOtherUsersProcess(t *testing.T) {
	if !testkit.IsRoot() {
		t.Skip("needs root to have a process of root's")
	}
	p := testkit.Start(t, testkit.Compile(t, "threads.c"), "0")
	check := untouched(t, p.Pid)
	for _, args := range [][]string{
		{"trace", "-e", "uprobe:libc:malloc { @ = count(); }", "-p"},
		{"clean", "-p"},
	} {
		cmd := testkit.AsOrdinaryUser(t, exec.Command(program, append(args, strconv.Itoa(p.Pid))...))
		refusedResult(t, startCmd(t, cmd).wait(), exitFailed, "it belongs to user root (0) and you are nobody")
	}
	check()
	p.Stop()
}

// Test32Bit probes a program that pauses forever, written by hand: no compiler
// for i386 is needed.
func Test32Bit(t *testing.T) {
	code := []byte{
		0xb8, 4, 0, 0, 0, 0xbb, 1, 0, 0, 0, // mov $4, %eax; mov $1, %ebx: write(1,
		0xb9, 0x79, 0x80, 0x04, 0x08, 0xba, 1, 0, 0, 0, 0xcd, 0x80, // mov $0x8048079, %ecx; mov $1, %edx; int $0x80
		0xb8, 29, 0, 0, 0, 0xcd, 0x80, 0xeb, 0xf7, // mov $29, %eax: pause(); int $0x80; jmp back
		'\n',
	}
	const base, head = 0x8048000, 52 + 32
	code[11] = head + byte(len(code)) - 1 // the address of the newline
	var f []byte
	f = append(f, elf.ELFMAG...)
	f = append(f, byte(elf.ELFCLASS32), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT))
	f = append(f, make([]byte, 16-len(f))...)
	le := binary.LittleEndian
	for _, h := range []uint16{uint16(elf.ET_EXEC), uint16(elf.EM_386)} {
		f = le.AppendUint16(f, h)
	}
	for _, w := range []uint32{1, base + head, 52, 0, 0} { // version, entry, phoff, shoff, flags
		f = le.AppendUint32(f, w)
	}
	for _, h := range []uint16{52, 32, 1, 40, 0, 0} {
		f = le.AppendUint16(f, h)
	}
	size := uint32(head + len(code))
	for _, w := range []uint32{uint32(elf.PT_LOAD), 0, base, base, size, size, uint32(elf.PF_R | elf.PF_X), 0x1000} {
		f = le.AppendUint32(f, w)
	}
	path := filepath.Join(t.TempDir(), "pause32")
	if err := os.WriteFile(path, append(f, code...), 0o755); err != nil {
		t.Fatal(err)
	}
	try := exec.Command(path)
	if err := try.Start(); err != nil {
		t.Skipf("needs a kernel that runs 32-bit programs: %v", err)
	}
	_ = try.Process.Kill()
	_ = try.Wait()
	p := testkit.StartCommand(t, exec.Command(path))
	p.Line()
	refusedProcess(t, p.Pid, "pause32 is a 32-bit program (EM_386)")
	if p.Ended() {
		t.Error("the target has ended")
	}
}
