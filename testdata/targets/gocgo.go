//go:build ignore

// A Go program that calls C and is called back, over and over, and checks the results. It prints "ready"
// and the result for each line of input.
package main

/*
#include <stdlib.h>
extern int goSquare(int);
static int c_add(int a, int b) { return a + b; }
static int c_call_back(int n) { return goSquare(n) + 1; }
*/
import "C"

import (
	"bufio"
	"fmt"
	"os"
)

//export goSquare
func goSquare(n C.int) C.int { return n * n }

//go:noinline
func callC(a, b int) int { return int(C.c_add(C.int(a), C.int(b))) }

//go:noinline
func callBack(n int) int { return int(C.c_call_back(C.int(n))) }

func main() {
	in := bufio.NewScanner(os.Stdin)
	fmt.Println("ready")
	for in.Scan() {
		n := len(in.Text())
		if callC(n, 3) != n+3 || callBack(n) != n*n+1 {
			fmt.Println("wrong")
			os.Exit(1)
		}
		fmt.Println(callC(n, 3), callBack(n))
	}
}
