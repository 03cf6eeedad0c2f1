package session

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"trapless/internal/image"
	"trapless/internal/kuprobe"
	"trapless/internal/plan"
	"trapless/internal/ptrace"
	"trapless/internal/testkit"
)

// Programs that people run, as Debian ships them.

// python is the interpreter's file: neither a link to it, nor a script of that
// name that a version manager has put before it.
func python(t *testing.T) string {
	t.Helper()
	const debian = "/usr/bin/python3"
	if _, err := os.Stat(debian); err != nil {
		testkit.RequirePackage(t, "python3")
	}
	path, err := filepath.EvalSymlinks(debian)
	if err != nil {
		t.Skipf("needs Debian's python3: %v", err)
	}
	return path
}

// pythonScript computes something that goes through allocator, lists, dicts,
// exceptions, generators, threads and a garbage collection, and prints a digest.
const pythonScript = `
import gc, hashlib, threading
h = hashlib.sha256()
def work(n):
    out = []
    for i in range(n):
        d = {j: str(j) * (i % 7) for j in range(i % 50)}
        l = sorted(d.values(), key=lambda s: (len(s), s))
        try:
            l.index("none")
        except ValueError as e:
            l.append(str(e))
        l.extend(x * 2 for x in range(i % 5))
        out.append(repr(l[-3:]))
    return "".join(out)
threads, results = [], {}
for k in range(3):
    threads.append(threading.Thread(target=lambda k=k: results.__setitem__(k, work(300 + k))))
for t in threads: t.start()
for t in threads: t.join()
gc.collect()
for k in sorted(results): h.update(results[k].encode())
print(h.hexdigest())
`

// launchOutput runs a command with a session on it to its end and returns what
// it wrote.
func launchOutput(t *testing.T, argv []string, src string) (string, *Session, *recorder) {
	t.Helper()
	out, err := os.Create(filepath.Join(t.TempDir(), "output"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	c, r := config(t, src)
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Deadline)
	defer cancel()
	env := append(os.Environ(), "PYTHONHASHSEED=0")
	s, err := launchWithRoom(ctx, t, &ptrace.Command{Path: argv[0], Args: argv, Env: env, Files: []*os.File{nil, out, os.Stderr}}, c)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Run(ctx); err != nil {
		t.Error(err)
	}
	status, err := s.Wait(ctx)
	if err != nil || status.ExitStatus() != 0 {
		t.Errorf("%s: %v, %v", argv[0], status, err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	text, err := os.ReadFile(out.Name())
	if err != nil {
		t.Fatal(err)
	}
	return string(text), s, r
}

// launchWithRoom launches a program, and does so anew where no free address suits the
// windows of one at a low fixed address, as Debian's python3 is: where the kernel lets
// its heap begin differs from start to start.
func launchWithRoom(ctx context.Context, t *testing.T, cmd *ptrace.Command, c Config) (*Session, error) {
	t.Helper()
	for try := 1; ; try++ {
		s, err := Launch(ctx, cmd, c)
		if err == nil || try == launchTries || !strings.Contains(err.Error(), string(plan.NoSpringboard)) {
			return s, err
		}
		t.Logf("%s is started anew: %v", cmd.Path, err)
	}
}

// launchTries bounds how often a program is started: one heap in ten begins so near that
// some windows have no address.
const launchTries = 10

// TestPythonComputesTheSame launches python with more and more probes.
func TestPythonComputesTheSame(t *testing.T) {
	exe := python(t)
	cmd := exec.Command(exe, "-c", pythonScript)
	cmd.Env = append(os.Environ(), "PYTHONHASHSEED=0")
	want, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		probe string
		sites int // at least
	}{
		{"PyObject_Malloc", 1},
		{"PyList_*", 1},
		{"_PyObject_*", 1},
		{"Py*", 100},
	} {
		t.Run(c.probe, func(t *testing.T) {
			src := "uprobe:" + exe + ":" + c.probe + " { @[arg0] = count(); @total = count(); }"
			got, s, r := launchOutput(t, []string{exe, "-c", pythonScript}, src)
			if got != string(want) {
				t.Errorf("python printed %q, without probes %q", got, want)
			}
			if s.Sites() < c.sites {
				t.Errorf("%d sites, want at least %d", s.Sites(), c.sites)
			}
			if total := r.maps["@total"]; len(total) != 1 || total[0].Value[0] == 0 {
				t.Errorf("counted %v", total)
			}
		})
	}
}

// fileOffset is where a function lies in its file, as the kernel's uprobes name it.
func fileOffset(t *testing.T, path, function string) uint64 {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	im, err := image.New(f, st.Size())
	if err != nil {
		t.Fatal(err)
	}
	funcs, err := im.Functions()
	if err != nil {
		t.Fatal(err)
	}
	found, err := funcs.Lookup(function)
	if err != nil || len(found) != 1 {
		t.Fatalf("%s: %v, %v", function, found, err)
	}
	for _, s := range im.Segments {
		if s.Exec && s.Addr <= found[0].Start && found[0].Start < s.Addr+image.VAddr(s.FileSize) {
			return uint64(s.Off) + uint64(found[0].Start-s.Addr)
		}
	}
	t.Fatalf("%s is in no executable segment", function)
	return 0
}

// TestPythonAgreesWithUprobes asks the kernel how often a function is called.
// The copy of the interpreter that is started is nobody else's, so the kernel may
// count all that run it.
func TestPythonAgreesWithUprobes(t *testing.T) {
	exe := testkit.Copy(t, python(t))
	for _, function := range []string{"PyObject_Malloc", "PyList_Append", "PyDict_SetItem", "PyErr_SetString"} {
		t.Run(function, func(t *testing.T) {
			// One run for each: two breakpoints on one instruction would be told
			// apart, and the site refused.
			script := "import sys; l = [str(i) for i in range(2000)]; print(len(''.join(l)))"
			k, err := kuprobe.AttachAll(kuprobe.Place{Path: exe, Offset: fileOffset(t, exe, function)})
			if err != nil {
				t.Skipf("needs kernel uprobes: %v", err)
			}
			alone := exec.Command(exe, "-S", "-c", script)
			alone.Env = append(os.Environ(), "PYTHONHASHSEED=0")
			if out, err := alone.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			want, err := k.Count()
			if err != nil {
				t.Fatal(err)
			}
			if err := k.Close(); err != nil {
				t.Fatal(err)
			}
			_, _, r := launchOutput(t, []string{exe, "-S", "-c", script}, "uprobe:"+exe+":"+function+" { @ = count(); }")
			got := uint64(0)
			if e := r.maps["@"]; len(e) == 1 {
				got = e[0].Value[0]
			}
			t.Logf("%s: %d calls, %d by the kernel", function, got, want)
			if got != want || want == 0 {
				t.Errorf("%s: counted %d calls, the kernel %d", function, got, want)
			}
		})
	}
}

// redis is a running server.
type redis struct {
	*testkit.Target
	exe, cli, benchmark string
	port                string
}

func startRedis(t *testing.T) *redis {
	t.Helper()
	server := testkit.Command(t, "redis-server", "redis-server")
	exe, err := filepath.EvalSymlinks(server)
	if err != nil {
		t.Fatal(err)
	}
	r := &redis{exe: exe, cli: testkit.Command(t, "redis-cli", "redis-tools"), benchmark: testkit.Command(t, "redis-benchmark", "redis-tools"),
		port: strconv.Itoa(freePort(t))}
	r.Target = testkit.StartCommand(t, exec.Command(server, "--port", r.port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
		"--dir", t.TempDir()))
	for !strings.Contains(r.Line(), "Ready to accept connections") {
	}
	return r
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

func (r *redis) ask(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command(r.cli, append([]string{"-p", r.port}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("redis-cli %q: %v: %s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// load makes n requests of each kind, and fails if any fails.
func (r *redis) load(t *testing.T, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Deadline)
	defer cancel()
	out, err := exec.CommandContext(ctx, r.benchmark, "-p", r.port, "-q", "--csv", "-n", strconv.Itoa(n), "-c", "8", "-P", "4",
		"-t", "set,get,incr,lpush,hset,zadd").CombinedOutput()
	if err != nil || bytes.Contains(bytes.ToLower(out), []byte("error")) {
		t.Fatalf("redis-benchmark: %v: %s", err, out)
	}
}

// calls adds up the calls of all commands that the server says it has processed.
func (r *redis) calls(t *testing.T) uint64 {
	t.Helper()
	var sum uint64
	for line := range strings.Lines(r.ask(t, "info", "commandstats")) {
		_, rest, ok := strings.Cut(line, ":calls=")
		if !ok {
			continue
		}
		n, err := strconv.ParseUint(rest[:strings.IndexByte(rest, ',')], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		sum += n
	}
	return sum
}

// TestRedisUnderLoad probes a server while it works, by few and by thousands of
// probes, over and over, and then asks it what it has done.
func TestRedisUnderLoad(t *testing.T) {
	r := startRedis(t)
	stop, stopped := make(chan struct{}), make(chan error, 1)
	go func() { stopped <- r.keepBusy(stop) }()
	for _, c := range []struct {
		probe string
		sites int
	}{{"processCommand", 1}, {"lookupKey*", 5}, {"dict*", 50}, {"*", 1000}, {"*", 1000}} {
		s, rec := attach(t, r.Pid, "uprobe:"+r.exe+":"+c.probe+" { @[arg1] = count(); @total = count(); }")
		if s.Sites() < c.sites {
			t.Errorf("%s: %d sites, want at least %d", c.probe, s.Sites(), c.sites)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
		if err := s.Run(ctx); err != nil {
			t.Error(err)
		}
		cancel()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if e := rec.maps["@total"]; len(e) != 1 || e[0].Value[0] == 0 {
			t.Errorf("%s: counted %v", c.probe, e)
		}
	}
	close(stop)
	if err := <-stopped; err != nil {
		t.Errorf("the load: %v", err)
	}
	if got := r.ask(t, "ping"); got != "PONG" {
		t.Errorf("ping: %q", got)
	}
	if changes := testkit.TextChanges(t, r.Pid); len(changes) != 0 {
		t.Errorf("the text differs: %q", changes)
	}
}

// keepBusy runs one benchmark after the other until stop is closed.
func (r *redis) keepBusy(stop chan struct{}) error {
	for {
		out, err := exec.Command(r.benchmark, "-p", r.port, "-q", "--csv", "-n", "20000", "-c", "8", "-P", "4",
			"-t", "set,get,incr,lpush,hset,zadd").CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		select {
		case <-stop:
			return nil
		default:
		}
	}
}

// TestRedisAgrees compares with the server's own statistics. They leave out
// what is under way: the command that asks.
func TestRedisAgrees(t *testing.T) {
	r := startRedis(t)
	before := r.calls(t)
	s, rec := attach(t, r.Pid, "uprobe:"+r.exe+":processCommand { @commands = count(); }\nuprobe:"+r.exe+":call { @calls = count(); @flags[arg1] = count(); }")
	r.load(t, 5000)
	after := r.calls(t)
	finish(t, s)
	want := after - before
	for _, name := range []string{"@commands", "@calls"} {
		// before was asked for without the probe and counted by then; after with
		// it, and not counted yet.
		if e := rec.maps[name]; len(e) != 1 || e[0].Value[0] != want {
			t.Errorf("%s: counted %v, the server %d", name, e, want)
		}
	}
}
