//go:build ignore

// A Go program that calls C and is called back, from goroutines and from threads of C's own, and checks the
// results, while garbage is collected and threads come and go. A line "burst N" makes it call its probed
// functions, and answer how often. It ends at "stop" with "ok"; what goes wrong prints "FAILED ..." and ends it.
package main

/*
#cgo LDFLAGS: -lpthread
#include <pthread.h>
#include <stdlib.h>
extern int goSquare(int);
__attribute__((noinline)) static int c_add(int a, int b) { return a + b; }
__attribute__((noinline)) static int c_call_back(int n) { return goSquare(n) + 1; }
static int add(int a, int b) { return c_add(a, b); }
static int call_back(int n) { return c_call_back(n); }
static void *thread(void *n) { *(int *)n = c_call_back(*(int *)n); return 0; }
static int in_thread(int n)
{
	pthread_t t;
	if (pthread_create(&t, 0, thread, &n))
		return -1;
	pthread_join(t, 0);
	return n;
}
*/
import "C"

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

func fail(format string, args ...interface{}) {
	fmt.Printf("FAILED "+format+"\n", args...)
	os.Exit(1)
}

//export goSquare
func goSquare(n C.int) C.int { return C.int(probedSquare(int(n))) }

//go:noinline
func probedSquare(n int) int {
	b := make([]int, 1+n&7)
	b[0] = n
	return b[0] * n
}

//go:noinline
func probedCall(a, b int) int { return int(C.add(C.int(a), C.int(b))) }

//go:noinline
func probedBack(n int) int { return int(C.call_back(C.int(n))) }

//go:noinline
func probedThread(n int) int { return int(C.in_thread(C.int(n))) }

//go:noinline
func probedDeref(p *int) int { return *p }

func check(what string, got, want int) {
	if got != want {
		fail("%s is %d, want %d", what, got, want)
	}
}

func once(n int) {
	check("call", probedCall(n, 3), n+3)
	check("back", probedBack(n), n*n+1)
	check("thread", probedThread(7), 50)
	func() {
		defer func() {
			if _, ok := recover().(runtime.Error); !ok {
				fail("no nil pointer error")
			}
		}()
		probedDeref(nil)
	}()
}

const burstCalls = "call=1 back=1 thread=1 square=2 deref=1 c_add=1 c_call_back=2"

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

func main() {
	runtime.GOMAXPROCS(4)
	debug.SetGCPercent(20)
	time.AfterFunc(15*time.Minute, func() { os.Exit(3) })
	var stopping int32
	var wg sync.WaitGroup
	for _, arg := range os.Args[1:] {
		if arg == "quiet" {
			stopping = 1
		}
	}
	for g := 0; g < 3 && stopping == 0; g++ {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := 0; atomic.LoadInt32(&stopping) == 0; i++ {
				if int(C.call_back(C.int(i%1000))) != i%1000*(i%1000)+1 || int(C.in_thread(3)) != 10 {
					fail("a result in the background")
				}
			}
		}()
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
