package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"trapless"
)

func newStatus() *cobra.Command {
	var pid int
	var asJSON bool
	c := &cobra.Command{
		Use:   "status -p PID",
		Short: "list the probes of a process and their states",
		Long: `Lists the probes of the session that is at work on a process, in the layout of
the kernel's kprobes/list: address, k (or r at a function's return), symbol and
offset, file, and the state. OPTIMIZED sites are patched by a jump, BOOSTED ones
by a breakpoint, GONE ones were in a library that has been unloaded. The session
must be one of the same user; one that follows, or that probes all processes, tells of
each process by itself. If programs read memory (str, probe_read_user), a last line
says how: at once, or after asking the kernel whether it is there, which takes 130 ns.`,
		Example: `  trapless status -p 1234
  trapless status -p 1234 --json`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if pid <= 0 {
				return usageError{error: errors.New("give the process with -p PID")}
			}
			st, err := trapless.Control(c.Context(), pid, trapless.ControlRequest{Command: "status"})
			if err != nil {
				return err
			}
			return printStatus(st, asJSON)
		},
	}
	c.Flags().IntVarP(&pid, "pid", "p", 0, "the process")
	c.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return c
}

func printStatus(st *trapless.Status, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(os.Stdout).Encode(st)
	}
	for i := range st.Probes {
		if _, err := fmt.Println(st.Probes[i].String()); err != nil {
			return err
		}
	}
	if r := st.Reads; r.Direct+r.Asked > 0 {
		_, err := fmt.Printf("memory was read %d times at once (stack, own data), %d times after asking the kernel\n", r.Direct, r.Asked)
		return err
	}
	return nil
}
