// Package ptrace stops, changes and continues the threads of live processes.
//
// # One thread makes every call
//
// The kernel accepts ptrace requests only from the thread that attached. A
// [Tracer] is one goroutine locked to one thread of the operating system;
// exported methods send it a closure and wait. Everything it owns (groups,
// threads, their states) is touched by that goroutine alone, so there are no
// locks here. Where permitted the thread has a real-time priority: without it
// a thousand spinning threads of a target keep the tracer off the processors
// while they wait for it.
//
// # Stops
//
// A [Group] is every thread that runs in one address space. Seize attaches
// without stopping anything; options make the kernel attach what is born
// afterwards, and the listing is repeated until nothing new appears. Stop asks
// all threads to stop and then collects them without blocking; a thread that
// cannot stop (it waits for its vfork child, or for a disk) costs the others no
// more than a bounded pause: they are continued, and it is tried again.
//
// While attached, every stop is one of these, and is answered so:
//
//   - asked for by us: held or continued;
//   - a signal about to be delivered: passed on, with its siginfo;
//   - a group-stop (SIGSTOP and the like): the thread stays stopped
//     (PTRACE_LISTEN) until whoever stopped it continues it;
//   - a new thread or child: adopted when it shares the memory, else let go;
//   - execve or exit: the group is over.
//
// # Interrupted system calls
//
// Most system calls that a stop interrupts are restarted by the kernel. Some
// return EINTR instead (signal(7)); see restart.go for how they are mended.
//
// # Code that runs in the target
//
// Code is injected so that the target needs nobody to finish it: see run.go.
// Whenever the tracer dies, the kernel detaches every thread, and each goes on
// as if it had never been stopped.
package ptrace
