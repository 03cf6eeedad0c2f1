package conformance

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"trapless/internal/testkit"
)

// Where the suite is, and which version of it the tests are made for.
const (
	suite   = "https://github.com/Alan-Jowett/bpf_conformance"
	version = "f558566280d8e76c95a502cfd8014264d8668130"
)

// fetchTime is how long fetching may take.
const fetchTime = 30 * time.Second

// fetched is the directory with the suite's cases, which is fetched once a machine;
// a failure is not tried again by the same test binary.
var fetched = sync.OnceValues(func() (string, error) {
	cache, err := testkit.CacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "bpf_conformance-"+version[:12])
	if _, err := os.Stat(dir); err == nil {
		return filepath.Join(dir, "tests"), nil
	}
	tmp, err := os.MkdirTemp(cache, "bpf_conformance-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	ctx, cancel := context.WithTimeout(context.Background(), fetchTime)
	defer cancel()
	for _, args := range [][]string{{"init", "-q"}, {"fetch", "-q", "--depth", "1", suite, version}, {"checkout", "-q", "FETCH_HEAD"}} {
		cmd := exec.CommandContext(ctx, "git", args...)
		cmd.Dir, cmd.Env = tmp, append(os.Environ(), "GIT_TERMINAL_PROMPT=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("git %s: %w: %s", args[0], err, strings.TrimSpace(string(out)))
		}
	}
	if err := os.Rename(tmp, dir); err != nil {
		if _, there := os.Stat(dir); there != nil { // else another test binary was faster
			return "", err
		}
	}
	return filepath.Join(dir, "tests"), nil
})
