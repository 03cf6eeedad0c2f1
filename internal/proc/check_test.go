package proc

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The test binary is also the other process in some tests.
const helperEnv = "PROC_TEST_HELPER"

func TestMain(m *testing.M) {
	switch os.Getenv(helperEnv) {
	case "":
		os.Exit(m.Run())
	case "check": // says what Check says
		for _, arg := range os.Args[1:] {
			pid, _ := strconv.Atoi(arg)
			fmt.Println(Check(pid))
		}
	case "trace": // traces a child
		runtime.LockOSThread()
		cmd := exec.Command("/bin/sleep", "1000")
		cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true, Pdeathsig: syscall.SIGKILL}
		if err := cmd.Start(); err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(cmd.Process.Pid)
		time.Sleep(time.Hour)
	case "zombie": // does not wait for a child
		cmd := exec.Command("/bin/true")
		if err := cmd.Start(); err != nil {
			fmt.Println(err)
			return
		}
		for range 1000 {
			if st, err := ReadStat(cmd.Process.Pid, cmd.Process.Pid); err == nil && st.Dead() {
				break
			}
			time.Sleep(time.Millisecond)
		}
		fmt.Println(cmd.Process.Pid)
		time.Sleep(time.Hour)
	}
}

func helper(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), helperEnv+"="+name)
	return cmd
}

// other starts a helper that says a process id.
func other(t *testing.T, name string) (pid int, parent int) {
	t.Helper()
	cmd := helper(t, name)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	s := bufio.NewScanner(out)
	s.Scan()
	pid, err = strconv.Atoi(s.Text())
	if err != nil {
		t.Fatalf("the helper says %q", s.Text())
	}
	return pid, cmd.Process.Pid
}

// sleeper starts a program that sleeps.
func sleeper(t *testing.T, path string, args ...string) int {
	t.Helper()
	cmd := exec.Command(path, args...)
	if err := cmd.Start(); err != nil {
		if errors.Is(err, syscall.ENOEXEC) {
			t.Skip("this kernel runs no 32-bit programs")
		}
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd.Process.Pid
}

// tiny32 is a 32-bit program: an ELF header, one segment, and jmp to itself.
func tiny32(t *testing.T) string {
	t.Helper()
	elf := []byte{
		0x7f, 'E', 'L', 'F', 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0,
		2, 0, 3, 0, 1, 0, 0, 0, 0x54, 0x80, 0x04, 0x08, 52, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // ET_EXEC, EM_386, entry
		52, 0, 32, 0, 1, 0, 0, 0, 0, 0, 0, 0, // sizes and counts
		1, 0, 0, 0, 0, 0, 0, 0, 0, 0x80, 0x04, 0x08, 0, 0x80, 0x04, 0x08, // PT_LOAD
		89, 0, 0, 0, 89, 0, 0, 0, 5, 0, 0, 0, 0, 0x10, 0, 0, // sizes, R-X, alignment
		0xb8, 29, 0, 0, 0, 0xcd, 0x80, // pause()
	}
	elf[68], elf[72] = byte(len(elf)), byte(len(elf))
	path := t.TempDir() + "/tiny32"
	if err := os.WriteFile(path, elf, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func unusedPID(t *testing.T) int {
	t.Helper()
	cmd := exec.Command("/bin/true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	return cmd.Process.Pid
}

func TestCheck(t *testing.T) {
	zombie, _ := other(t, "zombie")
	traced, tracer := other(t, "trace")
	ordinary := sleeper(t, "/bin/sleep", "1000")
	thread := 0
	tids, err := Threads(os.Getpid())
	if err != nil || len(tids) < 2 {
		t.Fatalf("threads %v, %v", tids, err)
	}
	thread = tids[1]
	for _, c := range []struct {
		name string
		pid  int
		want error
		says string
	}{
		{"ordinary", ordinary, nil, ""},
		{"none", unusedPID(t), ErrNoProcess, "no such process"},
		{"zero", 0, ErrNoProcess, "positive"},
		{"negative", -1, ErrNoProcess, "positive"},
		{"zombie", zombie, ErrZombie, "true has ended"},
		{"thread", thread, ErrThreadID, fmt.Sprintf("give its process, %d,", os.Getpid())},
		{"traced", traced, ErrTraced, fmt.Sprintf("by process %d (proc.test)", tracer)},
		{"32-bit", sleeper(t, tiny32(t)), ErrNot64, "tiny32 is a 32-bit program (EM_386)"},
		{"ourselves", os.Getpid(), ErrSelf, "another process"},
		{"kernel thread", 2, ErrKernelThread, "kthreadd"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.pid == 2 && Comm(2) != "kthreadd" {
				t.Skip("no kernel threads can be seen here")
			}
			err := Check(c.pid)
			if !errors.Is(err, c.want) {
				t.Fatalf("Check says %v, want %v", err, c.want)
			}
			if err == nil {
				return
			}
			var e *Error
			text := err.Error()
			if !errors.As(err, &e) || e.PID != c.pid || !strings.Contains(text, c.says) || strings.Contains(text, "\n") ||
				!strings.HasPrefix(text, fmt.Sprintf("process %d: ", c.pid)) {
				t.Errorf("Check says %q", text)
			}
		})
	}
}

// TestDenied: the reason that is given is the one that holds, and what is advised helps.
func TestDenied(t *testing.T) {
	for _, c := range []struct {
		euid, egid, uid, scope int // of the process, of us, of Yama
		says                   string
	}{
		{7, 7, 7, 0, "protected"},
		{7, 7, 7, 1, "by trapless (-c)"},
		{7, 7, 7, 2, "become root"},
		{7, 7, 7, 3, "nobody"},
		{7, 7, 0, 3, "nobody"},
		{0, 7, 7, 1, "belongs to user root (0) and you are"}, // set-user-ID
		{7, 8, 7, 1, "another group"},
		{7, 7, 0, 1, "lacks"},
	} {
		st := &Status{UID: [4]int{7, c.euid, c.euid, c.euid}, GID: [4]int{7, c.egid, c.egid, c.egid}}
		err := denied(1, st, c.uid, 7, c.scope)
		if !errors.Is(err, ErrPermission) || !strings.Contains(err.Error(), c.says) || c.uid == 0 && strings.Contains(err.Error(), "become root") {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestCheckOfOtherUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("another user's process takes root to make")
	}
	own := sleeper(t, "/bin/sleep", "1000")
	// Somewhere where another user can execute it.
	self, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "proc-test")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(dir+"/self", self, 0o755)); err != nil {
		t.Fatal(err)
	}
	cmd := helper(t, "check", strconv.Itoa(own))
	cmd.Path, cmd.Dir = dir+"/self", "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	text := string(out)
	if err != nil || strings.Count(text, "\n") != 1 || !strings.Contains(text, "root (0)") || !strings.Contains(text, "(65534)") ||
		!strings.Contains(text, "CAP_SYS_PTRACE") {
		t.Errorf("%q, %v", text, err)
	}
}
