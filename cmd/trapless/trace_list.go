package main

import (
	"bufio"
	"fmt"
	"os"
	"strings"

	"trapless"
)

// listProbes lists the probes of a script, or those that fit a pattern.
func (f *traceFlags) listProbes(args []string) error {
	var patterns []string
	switch {
	case f.expr != "" || len(args) == 1 && isFile(args[0]):
		script, err := f.compile(args)
		if err != nil {
			return err
		}
		patterns = script.AttachPoints()
	case len(args) > 1:
		return usageError{error: fmt.Errorf("-l takes one pattern or file, not %d", len(args))}
	case len(args) == 1:
		if strings.Contains(args[0], ".") && !strings.ContainsAny(args[0], ":*") {
			fmt.Fprintf(os.Stderr, "WARNING: It appears that '%s' is a filename but the file does not exist. Treating '%s' as a search pattern.\n", args[0], args[0])
		}
		patterns = strings.Split(args[0], ",")
	default:
		patterns = []string{"*:*"}
	}
	w := bufio.NewWriter(os.Stdout)
	for _, p := range patterns {
		if err := trapless.List(w, strings.TrimSpace(p), trapless.ListOptions{PID: f.pid, Parameters: f.verbose, DebugDirs: f.debugDirs()}); err != nil {
			return err
		}
	}
	return w.Flush()
}

func isFile(name string) bool {
	st, err := os.Stat(name)
	return err == nil && st.Mode().IsRegular()
}
