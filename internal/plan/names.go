package plan

import "strings"

// blockedGroup lists functions that run while signals are blocked, or while
// handlers are reset or not yet usable: a trap there kills the target.
// Preserving their original instructions is safe, trapping in them is not.
type blockedGroup struct {
	why   string
	names string // separated by blanks
}

// blockedGroups was collected from the sources of glibc 2.31 to 2.42 (the files
// are named with each group), musl 1.2 and Go 1.26.
var blockedGroups = []blockedGroup{
	{
		// sysdeps/unix/sysv/linux/x86_64/{clone,clone3}.S, clone-internal.c;
		// musl src/thread/x86_64/clone.s.
		why:   "a new thread starts in it with signals blocked",
		names: "clone __clone clone3 __clone3 __clone_internal __clone_internal_fallback",
	},
	{
		// nptl/pthread_create.c, nptl/nptl-stack.c, nptl/nptl_deallocate_tsd.c.
		why: "threads are made, begin and end in it with signals blocked",
		names: "start_thread create_thread pthread_create __pthread_create __pthread_create_2_1 __pthread_create_2_0 " +
			"__nptl_free_tcb __nptl_deallocate_stack __nptl_free_stacks __nptl_deallocate_tsd __libc_thread_freeres " +
			"__unmapself",
	},
	{
		// sysdeps/unix/sysv/linux/spawni.c, posix/spawn*.c.
		why: "a child that shares the memory runs in it with signals blocked and handlers reset",
		names: "posix_spawn posix_spawnp __posix_spawn __posix_spawnp __posix_spawn_compat __spawni __spawnix " +
			"__spawni_child pidfd_spawn pidfd_spawnp __pidfd_spawn",
	},
	{
		// posix/exec*.c, sysdeps/unix/sysv/linux/{execve,fexecve,execveat}.c.
		why: "children run in it with signals blocked and handlers reset",
		names: "execve __execve execv execvp execvpe __execvpe __execvpex __execvpe_common execl execle execlp " +
			"fexecve execveat maybe_script_execute script_execute _exit _Exit",
	},
	{
		// sysdeps/unix/sysv/linux/x86_64/vfork.S, sysdeps/nptl/_Fork.c.
		why:   "parent and child share its frame, or signals are blocked in it",
		names: "vfork __vfork __libc_vfork _Fork arch_fork",
	},
	{
		// stdlib/abort.c, nptl/pthread_kill.c, sysdeps/posix/raise.c.
		why: "signals are blocked in it",
		names: "abort raise gsignal __pthread_kill_implementation __pthread_kill_internal pthread_kill " +
			"__pthread_kill __abort_lock_wrlock __abort_lock_rdlock __abort_lock_unlock",
	},
	{
		// sysdeps/unix/sysv/linux/x86_64/{sigaction.c,setcontext.S,swapcontext.S}.
		why:   "it changes the signal mask, or returns from a signal",
		names: "__restore_rt __restore sigreturn __sigreturn setcontext swapcontext __setcontext __swapcontext __start_context",
	},
	{
		// sysdeps/unix/sysv/linux/timer_routines.c, sysdeps/pthread/{aio_misc,gai_misc}.c.
		why: "the C library's own threads run in it with signals blocked",
		names: "timer_helper_thread timer_sigev_thread __timer_helper_thread handle_fildes_io handle_requests " +
			"notify_func_wrapper",
	},
	{
		// elf/rtld.c, sysdeps/x86_64/dl-machine.h.
		why: "it runs before the program has started",
		names: "_dl_start _dl_start_user _dl_start_final _dl_sysdep_start _dl_sysdep_start_cleanup dl_main " +
			"_dl_relocate_static_pie __libc_setup_tls",
	},
	{
		// runtime/os_linux.go, runtime/proc.go, runtime/sys_linux_amd64.s.
		why: "threads start and end in it with signals blocked",
		names: "runtime.mstart runtime.mstart.abi0 runtime.mstart0 runtime.mstart1 runtime.mstartm0 runtime.minit " +
			"runtime.minitSignals runtime.minitSignalStack runtime.minitSignalMask runtime.unminit runtime.unminitSignals " +
			"runtime.mexit runtime.mdestroy runtime.newosproc runtime.newosproc0 runtime.clone runtime.clone.abi0 " +
			"runtime.sigblock runtime.rtsigprocmask runtime.rtsigprocmask.abi0 runtime.exitThread runtime.exitThread.abi0 " +
			"runtime.rt0_go runtime.rt0_go.abi0 runtime.gogo runtime.gogo.abi0 gogo",
	},
	{
		// runtime/proc.go, runtime/signal_unix.go, syscall/exec_linux.go.
		why: "a child that shares the memory runs in it with signals blocked or handlers reset",
		names: "syscall.forkAndExecInChild syscall.forkAndExecInChild1 syscall.rawVforkSyscall syscall.rawVforkSyscall.abi0 " +
			"syscall.RawSyscall syscall.RawSyscall6 syscall.rawSyscallNoError syscall.runtime_BeforeFork " +
			"syscall.runtime_AfterFork syscall.runtime_AfterForkInChild runtime.beforefork runtime.afterfork " +
			"runtime.clearSignalHandlers runtime.setsig runtime.sigaction runtime.sysSigaction runtime.rt_sigaction " +
			"runtime.rt_sigaction.abi0 runtime.callCgoSigaction runtime.callCgoSigaction.abi0 runtime.msigrestore " +
			"runtime/internal/syscall.Syscall6 internal/runtime/syscall.Syscall6 internal/runtime/syscall/linux.Syscall6 " +
			"runtime.getg runtime.isGoHandler runtime.sigfillset syscall.writeUidGidMappings syscall.writeUidMappings " +
			"syscall.writeGidMappings syscall.writeSetgroups syscall.capToIndex syscall.capToMask syscall.formatIDMappings",
	},
	{
		// runtime/signal_unix.go: handlers are installed with a full mask.
		why: "it handles signals while all of them are blocked",
		names: "runtime.sigtramp runtime.sigtramp.abi0 runtime.cgoSigtramp runtime.cgoSigtramp.abi0 runtime.sigtrampgo " +
			"runtime.sighandler runtime.sigfwdgo runtime.sigfwd runtime.sigfwd.abi0 runtime.sigreturn__sigaction " +
			"runtime.sigreturn__sigaction.abi0 runtime.sigFetchG runtime.adjustSignalStack runtime.setg " +
			"runtime.doSigPreempt runtime.wantAsyncPreempt runtime.isAsyncSafePoint runtime.sigprof " +
			"runtime.sigprofNonGo runtime.sigsend runtime.raise runtime.raise.abi0 runtime.dieFromSignal runtime.crash",
	},
}

var blockedNames = func() map[string]string {
	names := map[string]string{}
	for _, g := range blockedGroups {
		for _, n := range strings.Fields(g.names) {
			names[n] = g.why
		}
	}
	return names
}()

// blockedSignals is why signals are blocked in a function, "" if nothing is
// known of it.
func blockedSignals(f *Func) string {
	if why := blockedNames[baseName(f.Name)]; why != "" {
		return why
	}
	for _, n := range f.Aliases {
		if why := blockedNames[baseName(n)]; why != "" {
			return why
		}
	}
	return ""
}

// mayHandleSignals reports code of Go's runtime, or below it, any of which a
// signal handler may call, which has all signals blocked. Assembly functions
// without a package are among it.
func mayHandleSignals(f *Func) bool {
	for _, prefix := range []string{"runtime.", "runtime/", "internal/", "sync/atomic.", "type:", "type."} {
		if strings.HasPrefix(f.Name, prefix) {
			return true
		}
	}
	return !strings.Contains(f.Name, ".")
}

// baseName strips what linkers and compilers add to a name: symbol versions
// (name@@VERSION), glibc's internal prefix, and the suffixes of parts and
// clones of a function (.cold, .part.0, .isra.0, .constprop.0).
func baseName(n string) string {
	n, _, _ = strings.Cut(n, "@")
	n = strings.TrimPrefix(n, "__GI_")
	if strings.IndexByte(n, '.') < 0 {
		return n
	}
	for _, suffix := range []string{".cold", ".part.", ".isra.", ".constprop.", ".lto_priv."} {
		n, _, _ = strings.Cut(n, suffix)
	}
	return n
}
