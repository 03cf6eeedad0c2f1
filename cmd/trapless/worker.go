package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"

	"trapless/internal/unix"
)

// A session runs in a process of its own, the worker, which outlives the one
// that the user started: when that is killed, even by SIGKILL, the kernel sends
// the worker a SIGTERM, and it takes the probes out in order. Without it, the
// journal would keep the target safe, but a stop that the kill fell into could
// leave an EINTR behind, and the probes would stay until the next attach.

// workerVar tells a worker that it is one, and who its parent is.
const workerVar = "TRAPLESS_WORKER_OF"

// inWorker runs f in a worker: in this process if it is one, else by starting
// this program again with the same arguments.
func inWorker(ctx context.Context, f func() error) error {
	if parent, err := strconv.Atoi(os.Getenv(workerVar)); err == nil {
		if err := os.Unsetenv(workerVar); err != nil {
			return err
		}
		runtime.LockOSThread() // the setting is this thread's, which has to stay
		if err := unix.SetParentDeathSignal(int(syscall.SIGTERM)); err != nil {
			return fmt.Errorf("prctl(PR_SET_PDEATHSIG): %w", err)
		}
		// Who presses Ctrl-Z stops the process that waits for us. Were we stopped too, the
		// target's threads might stay so with us. (A handler, as what we start would
		// inherit that they are ignored.)
		signal.Notify(make(chan os.Signal, 1), syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU)
		if os.Getppid() != parent {
			return errors.New("the parent process has ended")
		}
		return f()
	}
	return startWorker(ctx)
}

// startWorker starts the worker, tells it when to end, and ends as it ends. The
// kernel watches the thread that started a child, so that is kept.
func startWorker(ctx context.Context) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), workerVar+"="+strconv.Itoa(os.Getpid()))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting the worker: %w", err)
	}
	stop := context.AfterFunc(ctx, func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	})
	defer stop()
	err := cmd.Wait()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &exit) && exit.Exited():
		return statusError(exit.ExitCode())
	}
	return fmt.Errorf("the process that traces was killed (%w); run: trapless clean on its target", err)
}
