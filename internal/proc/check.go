package proc

import (
	"bytes"
	"debug/elf"
	"errors"
	"io/fs"
	"os"
	"os/user"
	"slices"
	"strconv"
	"syscall"
)

// Check says whether a process can be traced by us. It returns nil or exactly
// one *Error, the first of: no such process, a thread's id, a zombie, this process, a
// kernel thread, already traced, not permitted, not a 64-bit program. What it says may
// have changed before anybody acts on it.
func Check(pid int) error { return CheckBut(pid, 0) }

// CheckBut is Check for a tracer that may still hold threads of the process: the
// thread id of one that does not count as another tracer.
func CheckBut(pid, own int) error {
	if pid <= 0 {
		return refuse(pid, ErrNoProcess, "a process id is positive")
	}
	if st, err := ReadStatus(pid, pid); err != nil {
		return threadOrNone(pid)
	} else if st.Tgid == 0 {
		return refuse(pid, ErrNoProcess, "") // it has just gone
	} else if st.Tgid != pid {
		return refuse(pid, ErrThreadID, "give its process, %d, instead", st.Tgid)
	}
	tid, err := LiveThread(pid)
	if errors.Is(err, ErrZombie) {
		return refuse(pid, ErrZombie, "%s has ended and waits for its parent to notice", Comm(pid))
	} else if err != nil {
		return err
	}
	if pid == os.Getpid() {
		return refuse(pid, ErrSelf, "let another process do it, for example the trapless command")
	}
	stat, err := ReadStat(pid, tid)
	if err != nil {
		return err
	}
	if stat.KernelThread() {
		return refuse(pid, ErrKernelThread, "%s runs no code of user space", Comm(pid))
	}
	if err := checkTracer(pid, own); err != nil {
		return err
	}
	if err := checkAccess(pid, tid); err != nil {
		return err
	}
	return checkClass(pid, tid)
}

// threadOrNone: /proc/TID exists for every thread, though no listing has it,
// but /proc/TID/task/TID of a thread that does not lead does not fail either;
// only an id that names nothing gets here, or one that just went.
func threadOrNone(pid int) error {
	b, err := os.ReadFile(Path(pid, "status"))
	if err == nil {
		if st := parseStatus(string(b)); st.Tgid != 0 && st.Tgid != pid {
			return refuse(pid, ErrThreadID, "give its process, %d, instead", st.Tgid)
		}
	}
	return refuse(pid, ErrNoProcess, "")
}

// checkTracer looks at every thread that lives: a debugger can hold any of them.
// A dead leader stays with the tracer that it had, which may be ourselves.
func checkTracer(pid, own int) error {
	tids, err := Threads(pid)
	if err != nil {
		return err
	}
	for _, tid := range tids {
		st, err := ReadStatus(pid, tid)
		if err != nil || st.TracerPid == 0 || st.TracerPid == own || st.State.Dead() {
			continue
		}
		return TracedBy(pid, st.TracerPid)
	}
	return nil
}

// TracedBy is the error that names who traces a process.
func TracedBy(pid, tracer int) error {
	if b, err := os.ReadFile(Path(tracer, "status")); err == nil {
		tracer = parseStatus(string(b)).Tgid
	}
	return refuse(pid, ErrTraced, "by process %d (%s); a process has one tracer at a time, so detach that one first",
		tracer, Comm(tracer))
}

// checkAccess asks the kernel itself, by the one file whose opening needs just
// what attaching needs (ptrace(2), PTRACE_MODE_ATTACH_FSCREDS), and explains.
func checkAccess(pid, tid int) error {
	f, err := os.OpenFile(TaskPath(pid, tid, "mem"), os.O_RDWR, 0)
	if err == nil {
		return f.Close()
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return refuse(pid, ErrNoProcess, "")
	}
	st, err := ReadStatus(pid, tid)
	if err != nil {
		return err
	}
	return denied(pid, st, os.Getuid(), os.Getgid(), yamaScope())
}

// denied explains why the kernel does not let a user attach to a process.
func denied(pid int, st *Status, uid, gid, scope int) error {
	switch {
	case scope == 3:
		return refuse(pid, ErrPermission, "Yama's kernel.yama.ptrace_scope is 3, so nobody may attach until the next boot")
	case uid == 0:
		return refuse(pid, ErrPermission, "root may not attach without CAP_SYS_PTRACE, which it lacks here, or a security module forbids it; in a container, start that with --cap-add=SYS_PTRACE")
	case slices.ContainsFunc(st.UID[:3], func(u int) bool { return u != uid }):
		return refuse(pid, ErrPermission, "it belongs to user %s and you are %s: become root or that user, or give trapless CAP_SYS_PTRACE",
			userName(foreign(st.UID[:3], uid)), userName(uid))
	case slices.ContainsFunc(st.GID[:3], func(g int) bool { return g != gid }):
		return refuse(pid, ErrPermission, "it runs with another group: become root, or give trapless CAP_SYS_PTRACE")
	case scope == 1:
		return refuse(pid, ErrPermission, "Yama's kernel.yama.ptrace_scope is 1: start it by trapless (-c), become root, give trapless CAP_SYS_PTRACE, or set it to 0 by sysctl")
	case scope == 2:
		return refuse(pid, ErrPermission, "Yama's kernel.yama.ptrace_scope is 2: become root, give trapless CAP_SYS_PTRACE, or set it to 0 by sysctl")
	}
	return refuse(pid, ErrPermission, "it is protected (a set-user-ID program, more capabilities than you, or PR_SET_DUMPABLE 0): become root, or give trapless CAP_SYS_PTRACE")
}

func foreign(ids []int, own int) int {
	for _, id := range ids {
		if id != own {
			return id
		}
	}
	return own
}

func userName(uid int) string {
	id := strconv.Itoa(uid)
	if u, err := user.LookupId(id); err == nil {
		return u.Username + " (" + id + ")"
	}
	return id
}

// yamaScope is the restriction of the Yama security module, 0 without it
// (Documentation/admin-guide/LSM/Yama.rst).
func yamaScope() int {
	b, err := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope")
	if err != nil {
		return 0
	}
	n, _ := strconv.Atoi(string(bytes.TrimSpace(b)))
	return n
}

// checkClass reads the identification of the executable. It says "32-bit" of x32
// programs too, which have the registers of x86-64 and the pointers of i386.
func checkClass(pid, tid int) error {
	f, err := os.Open(TaskPath(pid, tid, "exe"))
	if err != nil {
		return explain(pid, err)
	}
	defer f.Close()
	var ident [20]byte
	if _, err := f.ReadAt(ident[:], 0); err != nil || !bytes.HasPrefix(ident[:], []byte(elf.ELFMAG)) {
		return refuse(pid, ErrNot64, "its executable is not ELF")
	}
	machine := elf.Machine(uint16(ident[18]) | uint16(ident[19])<<8)
	if elf.Class(ident[elf.EI_CLASS]) != elf.ELFCLASS64 {
		return refuse(pid, ErrNot64, "%s is a 32-bit program (%v)", Comm(pid), machine)
	}
	if machine != elf.EM_X86_64 {
		return refuse(pid, ErrNot64, "%s is a program for %v", Comm(pid), machine)
	}
	return nil
}
