package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
)

// output is where a script prints. What is printed is written by a goroutine of its own: who reads may take his
// time, a pager for instance, and the session has to look after its target meanwhile. What goes to standard error
// is written by the same one, so that all comes in its order.
type output struct {
	to, errs io.Writer
	flush    func() error // nil if nothing is held back
	close    func() error // nil for standard output

	// mu guards what follows.
	mu      sync.Mutex
	holds   bool // nothing is written before release
	waiting []piece
	bytes   int   // that wait, or are being written
	failed  error // of a write to to
	closed  bool
	changed sync.Cond // of waiting, holds and closed
	done    chan struct{}
}

// piece is what is to be written at once.
type piece struct {
	to   io.Writer
	text []byte
}

// mostWaiting is how much may wait before the session is told to hold back, in bytes.
const mostWaiting = 1 << 20

// newOutput begins with holding back what is printed, until release: BEGIN runs before anything is armed, and
// that the probes are in place is told first.
func newOutput(to, errs io.Writer) *output {
	o := &output{to: to, errs: errs, holds: true, done: make(chan struct{})}
	o.changed.L = &o.mu
	go o.writeAll()
	return o
}

// release lets what is printed be written.
func (o *output) release() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.holds = false
	o.changed.Signal()
}

// Write prints. It fails when an earlier text could not be written.
func (o *output) Write(b []byte) (int, error) { return len(b), o.add(o.to, b) }

// stderr is standard error, in order with what is printed, but not held back.
type stderr struct{ *output }

func (e stderr) Write(b []byte) (int, error) { return len(b), e.add(e.errs, b) }

// warn is warn, tell is tell, in order with what is printed.
func (o *output) warn(format string, args ...any) { say(stderr{o}, warning+format, args...) }
func (o *output) tell(format string, args ...any) { say(stderr{o}, told+format, args...) }

func (o *output) add(to io.Writer, b []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.holds && to == o.errs {
		_, err := to.Write(b)
		return err
	}
	if o.failed != nil && to == o.to {
		return o.failed
	}
	if last := len(o.waiting) - 1; last >= 0 && o.waiting[last].to == to {
		o.waiting[last].text = append(o.waiting[last].text, b...)
	} else {
		o.waiting = append(o.waiting, piece{to, bytes.Clone(b)})
	}
	o.bytes += len(b)
	o.changed.Signal()
	return nil
}

// stalled reports whether nobody reads what is printed, or not fast enough, and why it cannot be printed any more.
func (o *output) stalled() (bool, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return !o.holds && o.bytes > mostWaiting, o.failed
}

// writeAll writes what is printed until the output is closed.
func (o *output) writeAll() {
	defer close(o.done)
	for {
		all := o.take()
		if all == nil {
			return
		}
		for _, p := range all {
			_, err := p.to.Write(p.text)
			o.mu.Lock()
			o.bytes -= len(p.text)
			if err != nil && p.to == o.to && o.failed == nil { // nobody could be told of the other
				o.failed = err
			}
			o.mu.Unlock()
		}
	}
}

// take waits for something to be written; nil is the end.
func (o *output) take() []piece {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.waiting) == 0 && !o.closed || o.holds {
		o.changed.Wait()
	}
	all := o.waiting
	o.waiting = nil
	return slices.DeleteFunc(all, func(p piece) bool { return len(p.text) == 0 })
}

// openOutput opens what -o and -B say.
func (f *traceFlags) openOutput() (*output, error) {
	var to io.Writer = os.Stdout
	var flush, closed func() error
	if f.output != "" {
		file, err := os.Create(f.output)
		if err != nil {
			return nil, fmt.Errorf("failed to open output file: %w", err)
		}
		to, closed = file, file.Close
	}
	if f.buffer == "full" {
		b := bufio.NewWriterSize(to, 1<<16)
		to, flush = b, b.Flush
	}
	o := newOutput(to, os.Stderr)
	o.flush, o.close = flush, closed
	return o, nil
}

// Close waits until all is written.
func (o *output) Close() error {
	o.mu.Lock()
	o.holds, o.closed = false, true
	o.changed.Signal()
	o.mu.Unlock()
	<-o.done
	var err error // the session has told of the others
	if o.flush != nil && o.failed == nil {
		err = o.flush()
	}
	if o.close != nil {
		err = errors.Join(err, o.close())
	}
	return err
}
