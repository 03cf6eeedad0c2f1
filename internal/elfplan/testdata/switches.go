package main

import "fmt"

//go:noinline
func dense(n int, x int) int {
	switch n {
	case 0:
		return x * 3
	case 1:
		return x ^ 91
	case 2:
		return x + n
	case 3:
		return x / 7
	case 4:
		fmt.Println("four")
		return 1
	case 5:
		return n - x
	case 6:
		return x << 4
	case 7:
		return -x
	case 8:
		return x * x
	case 9:
		panic("nine")
	}
	return -1
}

//go:noinline
func words(s string, x int) int {
	switch s {
	case "one", "two":
		return x
	case "three":
		return x + 1
	case "four":
		return x * 7
	case "fives":
		return x - 3
	case "sixsix":
		return x / 3
	case "seven77":
		return 9
	case "eight888":
		return x << 2
	case "nine99999":
		return ^x
	case "ten1010101":
		return 10
	}
	return 0
}

func main() {
	sum := 0
	for i := 0; i < 9; i++ {
		sum += dense(i, i+5)
	}
	for _, s := range []string{"one", "three", "fives", "eight888", "ten1010101"} {
		sum += words(s, sum)
	}
	fmt.Println(sum)
}
