package main

import (
	"bytes"
	"os"
	"testing"
)

// TestUpToDate: tables.go is what gen makes of opcodes.txt.
func TestUpToDate(t *testing.T) {
	text, err := os.ReadFile("../opcodes.txt")
	if err != nil {
		t.Fatal(err)
	}
	want, err := generate("opcodes.txt", string(text))
	if err != nil {
		t.Fatal(err)
	}
	have, err := os.ReadFile("../tables.go")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(want, have) {
		t.Error("tables.go is stale: run go generate ./internal/insn/x86")
	}
}
