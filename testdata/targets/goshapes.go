//go:build ignore

// A Go program with functions of every shape that its linker names: methods by value and by pointer,
// closures, generic functions, wrappers, small and large frames. It prints "ready", and then for each line
// of input one line.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strings"
)

type number int

//go:noinline
func (n number) Twice() int { return int(n) * 2 }

type tree struct {
	left, right *tree
	value       int
}

//go:noinline
func (t *tree) Sum(factor int) int {
	if t == nil {
		return 0
	}
	return factor*t.value + t.left.Sum(factor) + t.right.Sum(factor)
}

type twicer interface{ Twice() int }

//go:noinline
func largest[T int | string](a ...T) (most T) {
	for _, x := range a {
		if x > most {
			most = x
		}
	}
	return most
}

//go:noinline
func bigFrame(n int) int {
	var b [2000]byte
	for i := range b {
		b[i] = byte(n + i)
	}
	return int(b[n%len(b)]) + len(strings.ToUpper(string(b[:10])))
}

//go:noinline
func hugeFrame(n int) int {
	var b [20000]byte
	for i := range b {
		b[i] = byte(n + i)
	}
	return int(b[n%len(b)]) + len(strings.ToUpper(string(b[:10])))
}

//go:noinline
func apply(f func(int) int, n int) int { return f(n) }

//go:noinline
func leaf(a, b int) int { return a ^ b }

func main() {
	in := bufio.NewScanner(os.Stdin)
	fmt.Println("ready")
	for in.Scan() {
		t := &tree{&tree{nil, nil, 1}, nil, 2}
		var x twicer = number(len(in.Text()))
		add := func(n int) int { return n + t.value }
		text, _ := json.Marshal(map[string]int{"twice": x.Twice(), "add": apply(add, 1)})
		fmt.Println(string(text), t.Sum(3), largest(1, 2), largest("a", "b"), bigFrame(7), hugeFrame(7), leaf(1, 2))
	}
}
