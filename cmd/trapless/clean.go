package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"trapless"
)

func newClean() *cobra.Command {
	var pid int
	var asJSON bool
	c := &cobra.Command{
		Use:   "clean -p PID",
		Short: "take out what a tracer that died left in a process",
		Long: `Restores the text and the signal actions of a process whose tracer was killed.
A process that a living tracer works on is left alone. Generated code stays
mapped, idle, because a saved program counter may still point into it.`,
		Example: `  trapless clean -p 1234`,
		Args:    noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if pid <= 0 {
				return usageError{error: errors.New("give the process with -p PID")}
			}
			r, err := trapless.Clean(c.Context(), pid)
			if err != nil {
				return err
			}
			if asJSON {
				return json.NewEncoder(os.Stdout).Encode(r)
			}
			fmt.Printf("restored %d patches and %d signal actions\n", r.Patches, r.Actions)
			if r.Slack > 0 {
				fmt.Printf("restored the ends of %d files' text, where a tracer was killed at its first step\n", r.Slack)
			}
			return nil
		},
	}
	c.Flags().IntVarP(&pid, "pid", "p", 0, "the process")
	c.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return c
}
