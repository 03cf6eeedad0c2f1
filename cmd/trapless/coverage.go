package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"trapless/internal/coverage"
)

func newCoverage() *cobra.Command {
	var asJSON bool
	var which string
	c := &cobra.Command{
		Use:   "coverage FILE...",
		Short: "tell how many places of a file can be probed without a trap",
		Long: `Plans a probe at each site of ELF files, and counts the tactics and the reasons
of refusals. No process is needed. Each site is planned as if it were the only
one, in a process whose address space is as usual. Entries are those of functions
of at least five bytes. Bytes per site are the relocated instructions and the jump
back, without the probe's program.

Tactics, the cheapest first: single (the instruction is long enough for a jump),
window (several make room for one), earlier (the jump lies before the site), pun
(the jump ends in bytes that stay as they are), short (a jump of two bytes to one
of five in padding), evict (other instructions move out to make room), trap (a
breakpoint, which costs microseconds a hit, and which 'trapless trace' uses only
with --breakpoints).`,
		Example: `  trapless coverage /lib/x86_64-linux-gnu/libc.so.6
  trapless coverage --sites returns --json /usr/bin/python3`,
		RunE: func(c *cobra.Command, files []string) error {
			if len(files) == 0 {
				return usageError{error: fmt.Errorf("give a file; see '%s --help'", c.CommandPath())}
			}
			sites, err := coverage.Parse(which)
			if err != nil {
				return usageError{error: fmt.Errorf("--sites: %w", err)}
			}
			var report struct {
				Files []*coverage.Result `json:"files"`
			}
			for _, name := range files {
				r, err := coverFile(c.Context(), name, sites)
				if err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
				report.Files = append(report.Files, r)
				if !asJSON {
					printCoverage(r)
				}
			}
			if asJSON {
				return json.NewEncoder(os.Stdout).Encode(report)
			}
			return nil
		},
	}
	c.Flags().StringVar(&which, "sites", string(coverage.All), "entries, returns or all")
	c.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return c
}

func coverFile(ctx context.Context, name string, sites coverage.Sites) (*coverage.Result, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, errors.Unwrap(err) // the name is said already
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, errors.New("not a regular file; name a program or a shared library")
	}
	return coverage.File(ctx, name, f, st.Size(), sites)
}

func printCoverage(r *coverage.Result) {
	fmt.Printf("%s: %d sites (%s), %.3f %% without a trap\n", r.File, r.N, r.Sites, 100*r.TrapFree)
	printShares("tactic", r.ByTactic, r.N)
	printShares("refused", r.Refused, r.N)
	if r.Short > 0 {
		fmt.Printf("  %d functions of less than five bytes are not counted\n", r.Short)
	}
	if r.Unresolved > 0 {
		fmt.Printf("  %d indirect jumps lead to places that are not known\n", r.Unresolved)
	}
	fmt.Printf("  planning %.0f ns a site; detour %.1f bytes a site\n", r.PlanNS, r.DetourBytes)
}

// printShares prints counts, the greatest first.
func printShares[K ~string](what string, counts map[K]int, n int) {
	keys := slices.SortedFunc(maps.Keys(counts), func(a, b K) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b))
	})
	for _, k := range keys {
		fmt.Printf("  %-8s %-20s %9d  %7.3f %%\n", what, k, counts[k], 100*float64(counts[k])/float64(n))
	}
}
