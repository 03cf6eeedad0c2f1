package main

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
)

// TestOutputKeepsTheOrder: what is printed and what is told come as they were written.
func TestOutputKeepsTheOrder(t *testing.T) {
	var all bytes.Buffer
	o := newOutput(&all, struct{ io.Writer }{&all})
	_, _ = o.Write([]byte("held,"))
	o.warn("at once")
	o.release()
	for range 1000 {
		_, _ = o.Write([]byte("a"))
		_, _ = stderr{o}.Write([]byte("b"))
	}
	if err := o.Close(); err != nil {
		t.Fatal(err)
	}
	if want := "WARNING: at once\nheld," + strings.Repeat("ab", 1000); all.String() != want {
		t.Errorf("printed %q", all.String())
	}
}

// TestOutputThatNobodyReads: nobody waits, the session is told to hold back, and nothing is lost.
func TestOutputThatNobodyReads(t *testing.T) {
	r, w := io.Pipe()
	o := newOutput(w, io.Discard)
	o.release()
	text := bytes.Repeat([]byte("x"), 1000)
	n := 0
	for {
		if stalled, err := o.stalled(); stalled || err != nil {
			break
		}
		if _, err := o.Write(text); err != nil {
			t.Fatal(err)
		}
		n++
	}
	got := make(chan int)
	go func() {
		all, _ := io.ReadAll(r)
		got <- len(all)
	}()
	if err := o.Close(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if read := <-got; read != n*len(text) {
		t.Errorf("%d bytes were read, %d written", read, n*len(text))
	}
}

// TestOutputFails: a later text tells of the error, once the writer has found it.
func TestOutputFails(t *testing.T) {
	r, w := io.Pipe()
	r.Close()
	o := newOutput(w, io.Discard)
	o.release()
	_, err := o.Write([]byte("x"))
	for err == nil {
		_, err = o.stalled()
	}
	if _, next := o.Write([]byte("x")); next != err {
		t.Errorf("the next text fails with %v", next)
	}
	if !errors.Is(err, io.ErrClosedPipe) {
		t.Error(err)
	}
	if err := o.Close(); err != nil {
		t.Error(err)
	}
}
