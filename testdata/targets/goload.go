//go:build ignore

// A Go program that does all that a Go program's runtime system has to cope with, all the time and on many
// goroutines, and checks every result: stack growth, garbage collection, recovered faults and panics, maps,
// encoding, compression, child processes, signals, threads that come and go, tracebacks, asynchronous
// preemption, and, with the argument "profile", CPU profiling.
//
// A line "burst N" makes it call its probed functions, and answer how often. It ends at "stop" or the end of
// its input with "ok"; the first thing that goes wrong prints "FAILED ..." and ends it with status 1.
package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

func fail(format string, args ...interface{}) {
	fmt.Printf("FAILED "+format+"\n", args...)
	os.Exit(1)
}

// The probed functions. Their numbers of calls are known by whoever calls them.

//go:noinline
func probedLeaf(a, b int, s string) int { return a ^ b + len(s) }

type node struct {
	pad  [40]byte
	next *node
	n    int
}

//go:noinline
func probedDeref(p *node) int { return p.n }

//go:noinline
func probedField(p *node, k int) int {
	q := p.next
	return q.n / k
}

//go:noinline
func probedDivide(a, b int) int { return a / b }

//go:noinline
func probedDeep(n int, sum *int) int {
	var b [200]byte
	b[n%len(b)] = byte(n)
	*sum += int(b[n%len(b)])
	if n == 0 {
		return 0
	}
	return probedDeep(n-1, sum) + int(b[n%len(b)])&1
}

//go:noinline
func probedHuge(n int) int {
	var b [9000]byte
	for i := 0; i < len(b); i += 500 {
		b[i] = byte(n + i)
	}
	return int(b[n%18*500]) + probedLeaf(n, n, "")
}

//go:noinline
func probedPanic(n int) (m int) {
	defer func() {
		if e := recover(); e != nil {
			m = e.(int) + 1
		}
	}()
	probedThrow(n)
	return -1
}

//go:noinline
func probedThrow(n int) {
	if n >= 0 {
		panic(n)
	}
	fmt.Println("not reached")
}

type shape interface{ probedArea(factor int) int }
type square struct{ side int }
type box struct{ a, b, c int }

//go:noinline
func (s square) probedArea(factor int) int { return s.side * s.side * factor }

//go:noinline
func (b *box) probedArea(factor int) int { return (b.a + b.b + b.c) * factor }

//go:noinline
func probedSpin(n int) (sum int) {
	for i := 0; i < n; i++ {
		sum += i ^ n
	}
	return sum
}

//go:noinline
func probedFloat(a, b float64) float64 { return a*b + a }

// faults calls a function that must panic with a runtime error of this text.
func faults(text string, f func()) {
	defer func() {
		e := recover()
		err, ok := e.(runtime.Error)
		if !ok || !strings.Contains(err.Error(), text) {
			fail("panic with %v, want %q", e, text)
		}
		var pcs [16]uintptr
		frames := runtime.CallersFrames(pcs[:runtime.Callers(0, pcs[:])])
		names := ""
		for {
			f, more := frames.Next()
			names += f.Function + " "
			if !more {
				break
			}
		}
		if !strings.Contains(names, "main.probed") || !strings.Contains(names, "main.faults") {
			fail("the traceback of a fault is %s", names)
		}
	}()
	f()
	fail("no panic, want %q", text)
}

func check(what string, got, want interface{}) {
	if got != want {
		fail("%s is %v, want %v", what, got, want)
	}
}

// once calls each probed function a known number of times: leaf 3, deref 3, field 2, divide 3, deep 301,
// huge 1, panic 2, throw 2, area 2, spin 1, float 1.
func once(n int) {
	check("leaf", probedLeaf(n, 5, "abc"), n^5+3)
	check("leaf", probedLeaf(n, n, ""), 0)
	p := &node{n: n}
	check("deref", probedDeref(p), n)
	faults("nil pointer", func() { probedDeref(nil) })
	p.next = &node{n: 12}
	check("field", probedField(p, 3), 4)
	faults("nil pointer", func() { probedField(&node{}, 1) })
	check("divide", probedDivide(84, 2), 42)
	faults("divide by zero", func() { probedDivide(n, 0) })
	faults("nil pointer", func() { probedDeref((*node)(nil)) })
	check("divide", probedDivide(-7, 2), -3)
	sum, deep := 0, make(chan int)
	go func() { deep <- probedDeep(300, &sum) }() // a new goroutine has a small stack
	check("deep", <-deep, 150)
	go func() { deep <- probedHuge(7) }()
	check("huge", <-deep, (7+3500)%256)
	check("panic", probedPanic(n), n+1)
	check("panic", probedPanic(0), 1)
	for _, s := range []shape{square{3}, &box{1, 3, 5}} {
		check("area", s.probedArea(n), 9*n)
	}
	check("spin", probedSpin(1000), spun)
	check("float", probedFloat(1.5, 2), 4.5)
}

var spun = func() (sum int) {
	for i := 0; i < 1000; i++ {
		sum += i ^ 1000
	}
	return sum
}()

const burstCalls = "leaf=3 deref=3 field=2 divide=3 deep=301 huge=1 panic=2 throw=2 area=1 box=1 spin=1 float=1"

// burst does it n times on some goroutines each.
func burst(n int) {
	const goroutines = 8
	var wg sync.WaitGroup
	for g := 0; g < goroutines; g++ {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := 0; i < n; i++ {
				once(i)
			}
		}()
	}
	wg.Wait()
	fmt.Println("burst", n*goroutines, burstCalls)
}

var stopping int32

// The loads. Each is repeated until the end.
var loads = map[string]func(i int){
	"json":    loadJSON,
	"gzip":    loadGzip,
	"maps":    loadMaps,
	"strings": loadStrings,
	"panics":  func(i int) { bgOnce(i) },
	"stacks":  loadStacks,
	"threads": loadThreads,
	"spin":    func(i int) { bgSpin(1 << 20) },
	"chans":   loadChans,
	"signals": loadSignals,
	"traces":  loadTraces,
	"child":   loadChild,
	"gc":      func(i int) { runtime.GC(); time.Sleep(3 * time.Millisecond) },
}

//go:noinline
func bgSpin(n int) (sum int) {
	for i := 0; i < n; i++ {
		sum += i & 3
	}
	if sum != n/4*6 {
		fail("spun to %d", sum)
	}
	return sum
}

//go:noinline
func bgDeref(p *node) int { return p.n }

//go:noinline
func bgDivide(a, b int) int { return a / b }

func bgOnce(i int) {
	func() {
		defer func() {
			if err, ok := recover().(runtime.Error); !ok || !strings.Contains(err.Error(), "nil pointer") {
				fail("no nil pointer error")
			}
		}()
		bgDeref(nil)
	}()
	func() {
		defer func() {
			if err, ok := recover().(runtime.Error); !ok || !strings.Contains(err.Error(), "divide by zero") {
				fail("no division error")
			}
		}()
		bgDivide(i, 0)
	}()
	if bgDeref(&node{n: i}) != i || bgDivide(i*3, 3) != i {
		fail("wrong results")
	}
}

type record struct {
	Name   string            `json:"name"`
	Values []float64         `json:"values"`
	Tags   map[string]string `json:"tags"`
	Inner  *record           `json:"inner,omitempty"`
}

func loadJSON(i int) {
	r := &record{"n" + strconv.Itoa(i), []float64{1.5, float64(i)}, map[string]string{"a": "b", "c": strconv.Itoa(i)}, &record{Name: "x"}}
	b, err := json.Marshal(r)
	if err != nil {
		fail("marshal: %v", err)
	}
	var back record
	if err := json.Unmarshal(b, &back); err != nil {
		fail("unmarshal %s: %v", b, err)
	}
	if back.Name != r.Name || back.Values[1] != float64(i) || back.Tags["c"] != strconv.Itoa(i) || back.Inner.Name != "x" {
		fail("json came back as %+v", back)
	}
	if err := json.Unmarshal([]byte(`{"name": 5}`), &back); err == nil {
		fail("wrong json was read")
	}
}

func loadGzip(i int) {
	text := strings.Repeat("the quick brown fox "+strconv.Itoa(i)+" ", 300)
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	io.WriteString(w, text)
	w.Close()
	r, err := gzip.NewReader(&b)
	if err != nil {
		fail("gzip: %v", err)
	}
	back, err := io.ReadAll(r)
	if err != nil || string(back) != text {
		fail("gzip: %v, %d bytes of %d", err, len(back), len(text))
	}
}

func loadMaps(i int) {
	m := map[string]int{}
	for k := 0; k < 500; k++ {
		m[strconv.Itoa(k*i)] += k
	}
	sum := 0
	for k, v := range m {
		sum += v
		if len(k)%2 == 0 {
			delete(m, k)
		}
	}
	if sum != 499*500/2 {
		fail("a map's values add up to %d", sum)
	}
}

func loadStrings(i int) {
	var parts []string
	for k := 0; k < 200; k++ {
		parts = append(parts, fmt.Sprintf("%d:%x:%q:%.3f", k, k*i, "é\n", float64(k)/3))
	}
	sort.Strings(parts)
	s := strings.Join(parts, ",")
	for k, p := range strings.Split(s, ",") {
		if p != parts[k] {
			fail("%q is not %q", p, parts[k])
		}
		n, err := strconv.Atoi(p[:strings.IndexByte(p, ':')])
		if err != nil || n < 0 || n > 199 {
			fail("%q: %v", p, err)
		}
	}
	if _, err := strconv.ParseFloat("1e400", 64); err == nil || !errors.Is(err, strconv.ErrRange) {
		fail("1e400 was read: %v", err)
	}
}

//go:noinline
func grow(n int, p *int) int {
	var b [64]int
	b[n%64] = n
	if n == 0 {
		return *p
	}
	return grow(n-1, p) + b[n%64] - n
}

func loadStacks(i int) {
	done := make(chan int)
	for g := 0; g < 4; g++ {
		go func(g int) {
			local := g
			done <- grow(100+i%2000, &local) - g
		}(g)
	}
	for g := 0; g < 4; g++ {
		if d := <-done; d != 0 {
			fail("a pointer into a stack that moved is off by %d", d)
		}
	}
}

func loadThreads(int) {
	done := make(chan bool)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		done <- true
	}()
	<-done
	time.Sleep(time.Millisecond)
}

func loadChans(i int) {
	a, b := make(chan int), make(chan int, 3)
	go func() {
		for k := 0; k < 100; k++ {
			a <- k
		}
		close(a)
	}()
	go func() {
		for v := range a {
			select {
			case b <- v * 2:
			case <-time.After(time.Minute):
				fail("a channel is stuck")
			}
		}
		close(b)
	}()
	sum := 0
	for v := range b {
		sum += v
	}
	if sum != 9900 {
		fail("channels carried %d", sum)
	}
}

var signals = make(chan os.Signal, 16)

func loadSignals(int) {
	if err := syscall.Kill(os.Getpid(), syscall.SIGUSR1); err != nil {
		fail("kill: %v", err)
	}
	select {
	case <-signals:
	case <-time.After(time.Minute):
		fail("a signal is lost")
	}
	time.Sleep(time.Millisecond)
}

func loadTraces(int) {
	b := make([]byte, 1<<20)
	if s := string(b[:runtime.Stack(b, true)]); !strings.Contains(s, "main.loadTraces") {
		fail("a traceback without its caller: %s", s)
	}
	if err := pprof.Lookup("goroutine").WriteTo(io.Discard, 0); err != nil {
		fail("profile of goroutines: %v", err)
	}
	time.Sleep(2 * time.Millisecond)
}

func loadChild(i int) {
	out, err := exec.Command("/bin/echo", strconv.Itoa(i)).Output()
	if err != nil || string(out) != strconv.Itoa(i)+"\n" {
		fail("a child said %q, %v", out, err)
	}
	time.Sleep(5 * time.Millisecond)
}

func profile() {
	for atomic.LoadInt32(&stopping) == 0 {
		var b bytes.Buffer
		if err := pprof.StartCPUProfile(&b); err != nil {
			fail("profile: %v", err)
		}
		time.Sleep(300 * time.Millisecond)
		pprof.StopCPUProfile()
		if b.Len() == 0 {
			fail("an empty profile")
		}
	}
}

func main() {
	runtime.GOMAXPROCS(4)
	debug.SetGCPercent(20)
	signal.Notify(signals, syscall.SIGUSR1)
	time.AfterFunc(15*time.Minute, func() { os.Exit(3) }) // whatever happens to the test
	var wg sync.WaitGroup
	quiet, only := false, ""
	for _, arg := range os.Args[1:] {
		switch arg {
		case "profile":
			go profile()
		case "quiet":
			quiet = true
		default:
			only = arg
		}
	}
	for name, load := range loads {
		if quiet || only != "" && name != only {
			continue
		}
		wg.Add(1)
		go func(load func(int)) {
			defer wg.Done()
			for i := 1; atomic.LoadInt32(&stopping) == 0; i++ {
				load(i)
			}
		}(load)
	}
	fmt.Printf("ready pid=%d\n", os.Getpid())
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() && in.Text() != "stop" {
		n, err := strconv.Atoi(strings.TrimPrefix(in.Text(), "burst "))
		if err != nil {
			fail("%q: %v", in.Text(), err)
		}
		burst(n)
	}
	atomic.StoreInt32(&stopping, 1)
	wg.Wait()
	fmt.Println("ok")
}
