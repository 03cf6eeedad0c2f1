package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"trapless/internal/torture"
)

func newTorture() *cobra.Command {
	o := torture.Options{}
	var asJSON bool
	c := &cobra.Command{
		Use:   "torture",
		Short: "change probes at random, kill tracers, and see whether anybody notices",
		Long: `Compiles programs that check themselves all the time (a C compiler is needed),
and lets tracers register, unregister and toggle probes in them at random, turn
optimization off and on, arm and disarm, and be killed at any moment, as the
targets are. It fails if a target notices anything, if a tracer fails, or if the
text of a process that is not probed differs from its files. The same seed makes
the same sequence of changes. Targets: ` + strings.Join(torture.Names(), ", ") + ".",
		Example: `  trapless torture --for 10m
  trapless torture --seed 7 --target dlopen,exec --json`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if o.For <= 0 || o.Parallel < 1 {
				return usageError{error: errors.New("--for and --parallel have to be positive")}
			}
			if !c.Flags().Changed("seed") {
				o.Seed = rand.Uint64()
			}
			o.Log = progress
			r, err := torture.Run(c.Context(), o)
			if err != nil {
				return usageError{error: err}
			}
			if asJSON {
				err = json.NewEncoder(os.Stdout).Encode(r)
			} else {
				_, err = fmt.Print(r)
			}
			if err == nil && r.Failures > 0 {
				return statusError(exitFailed)
			}
			return err
		},
	}
	fl := c.Flags()
	fl.Uint64Var(&o.Seed, "seed", 0, "the seed; a random one unless it is given")
	fl.DurationVar(&o.For, "for", time.Minute, "how long")
	fl.StringSliceVar(&o.Targets, "target", nil, "torture these targets instead of all")
	fl.IntVar(&o.Parallel, "parallel", 2, "so many targets at the same time")
	fl.BoolVar(&asJSON, "json", false, "print one JSON object")
	return c
}
