package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
)

// output is where a script prints.
type output struct {
	io.Writer
	flush func() error  // nil if nothing is held back
	close func() error  // nil for standard output
	held  *bytes.Buffer // what is printed before it is told that the probes are in place
}

// hold keeps back what is printed until release: BEGIN runs before anything is armed, and that the probes are
// in place is told first.
func (o *output) hold() { o.held = &bytes.Buffer{} }

func (o *output) release() error {
	if o.held == nil {
		return nil
	}
	_, err := o.held.WriteTo(o.Writer)
	o.held = nil
	return err
}

// Write prints.
func (o *output) Write(b []byte) (int, error) {
	if o.held != nil {
		return o.held.Write(b)
	}
	return o.Writer.Write(b)
}

// openOutput opens what -o and -B say.
func (f *traceFlags) openOutput() (*output, error) {
	o := &output{Writer: os.Stdout}
	if f.output != "" {
		file, err := os.Create(f.output)
		if err != nil {
			return nil, fmt.Errorf("failed to open output file: %w", err)
		}
		o.Writer, o.close = file, file.Close
	}
	if f.buffer == "full" {
		b := bufio.NewWriterSize(o.Writer, 1<<16)
		o.Writer, o.flush = b, b.Flush
	}
	return o, nil
}

// Close writes what is held back.
func (o *output) Close() error {
	err := o.release()
	if o.flush != nil {
		err = errors.Join(err, o.flush())
	}
	if o.close != nil {
		err = errors.Join(err, o.close())
	}
	return err
}
