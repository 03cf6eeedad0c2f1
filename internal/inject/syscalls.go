package inject

import (
	"fmt"

	jit "trapless/internal/jit/x86"
	"trapless/internal/proc"
)

// checkSyscalls refuses programs that make system calls where a seccomp filter
// watches any thread: it could kill a thread for a call that is not the
// target's own.
func (t *Target) checkSyscalls(reqs []Request) error {
	helper := ""
	for _, req := range reqs {
		for _, progs := range req.Programs {
			for _, p := range progs {
				if h := jit.SyscallHelper(p, &jit.Env{ThreadID: t.threadID}); h != "" {
					helper = h
				}
			}
		}
	}
	if helper == "" {
		return nil
	}
	threads, err := proc.Threads(t.PID)
	if err != nil {
		return err
	}
	for _, tid := range threads {
		st, err := proc.ReadStatus(t.PID, tid)
		if err != nil {
			continue // it has ended
		}
		if st.Seccomp != proc.SeccompOff {
			return fmt.Errorf("process %d: seccomp: a program calls the helper %s, which makes system calls, and thread %d has a filter that may kill it for them; leave the helper out",
				t.PID, helper, tid)
		}
	}
	return nil
}
