package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"trapless"
)

func newCtl() *cobra.Command {
	var pid int
	var asJSON bool
	rq := trapless.ControlRequest{}
	var spec trapless.ProbeSpec
	c := &cobra.Command{
		Use:   "ctl -p PID COMMAND [PROBE...]",
		Short: "change the probes of a session at work",
		Long: `Changes the probes of the session that is at work on a process, and lists them
as 'trapless status' does. The session must be one of the same user. A session that
follows, or that probes all processes, is asked for each process by itself.

  enable PROBE...     let programs run
  disable PROBE...    do not; the process is not stopped and its text stays
  arm                 patch all sites
  disarm              restore all of them; no probe's own state changes
  optimize on|off     jumps, or breakpoints (where 'trace --breakpoints' allows them)
  register AT...      the program of one of the script's probes at more places
  unregister PROBE... remove probes

PROBE is the number of a probe, a symbol with * for any characters, FILE:SYMBOL,
or all. Numbers are those of 'trapless status --json'.`,
		Example: `  trapless ctl -p 1234 disable 'malloc*'
  trapless ctl -p 1234 optimize off
  trapless ctl -p 1234 register --program 0 libc:calloc`,
		RunE: func(c *cobra.Command, args []string) error {
			if pid <= 0 {
				return usageError{error: errors.New("give the process with -p PID")}
			}
			if err := controlRequest(&rq, spec, args); err != nil {
				return usageError{error: fmt.Errorf("%w; see '%s --help'", err, c.CommandPath())}
			}
			st, err := trapless.Control(c.Context(), pid, rq)
			if err != nil {
				return err
			}
			return printStatus(st, asJSON)
		},
	}
	fl := c.Flags()
	fl.IntVarP(&pid, "pid", "p", 0, "the process")
	fl.BoolVar(&asJSON, "json", false, "print one JSON object")
	fl.IntVar(&spec.Program, "program", 0, "register: the number of the script's probe whose program runs, from 0")
	fl.BoolVar(&spec.Disabled, "disabled", false, "register: do not let it run yet")
	return c
}

// controlRequest reads a command and its arguments.
func controlRequest(rq *trapless.ControlRequest, spec trapless.ProbeSpec, args []string) error {
	if len(args) == 0 {
		return errors.New("no command")
	}
	command, args := args[0], args[1:]
	switch command {
	case "enable", "disable", "unregister":
		if len(args) == 0 {
			return fmt.Errorf("%s: which probes?", command)
		}
		rq.Probes = args
	case "register":
		if len(args) == 0 {
			return errors.New("register: where?")
		}
		for _, at := range args {
			spec.At = at
			rq.Specs = append(rq.Specs, spec)
		}
	case "arm", "disarm":
		if len(args) != 0 {
			return fmt.Errorf("%s takes no arguments", command)
		}
	case "optimize":
		if len(args) != 1 || args[0] != "on" && args[0] != "off" {
			return errors.New("optimize on, or optimize off")
		}
		if args[0] == "off" {
			command = "unoptimize"
		}
	default:
		return fmt.Errorf("unknown command %q", command)
	}
	rq.Command = command
	return nil
}
