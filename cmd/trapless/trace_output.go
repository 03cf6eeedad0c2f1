package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
)

// output is where a script prints.
type output struct {
	io.Writer
	flush func() error // nil if nothing is held back
	close func() error // nil for standard output
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
	var err error
	if o.flush != nil {
		err = o.flush()
	}
	if o.close != nil {
		err = errors.Join(err, o.close())
	}
	return err
}
