// Command gen turns opcodes.txt into tables.go. It runs by go generate in the
// directory of package x86; opcodes.txt itself explains its format.
//
// Lines become rows (parse.go), rows of one map and opcode become a decision
// tree (tree.go), and both become Go source (emit.go).
package main

import (
	"fmt"
	"os"
)

func main() {
	if err := run("opcodes.txt", "tables.go"); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

func run(src, dst string) error {
	text, err := os.ReadFile(src)
	if err != nil {
		return err
	}
	out, err := generate(src, string(text))
	if err != nil {
		return err
	}
	return os.WriteFile(dst, out, 0o644)
}

// generate is the source of tables.go for the text of opcodes.txt.
func generate(name, text string) ([]byte, error) {
	f, err := parse(name, text)
	if err != nil {
		return nil, err
	}
	t, err := buildTrees(f)
	if err != nil {
		return nil, err
	}
	return emit(f, t)
}
