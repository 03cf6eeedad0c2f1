package trapless_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/cilium/ebpf"

	"trapless"
)

// A program that used package ebpf to count calls in the kernel counts them inside
// the process. Lines that were other are marked.
func ExampleNewCollection() {
	const pid = 1234
	spec, err := ebpf.LoadCollectionSpec("counts.bpf.o")
	if err != nil {
		log.Fatal(err)
	}
	coll, err := trapless.NewCollection(spec, trapless.CollectionOptions{PID: pid}) // was: ebpf.NewCollection(spec)
	if err != nil {
		log.Fatal(err)
	}
	defer coll.Close()

	ex, err := trapless.OpenExecutable("/bin/bash") // was: link.OpenExecutable
	if err != nil {
		log.Fatal(err)
	}
	l, err := ex.Uretprobe("readline", coll.Programs["count"], nil)
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()

	time.Sleep(time.Minute)
	var key uint32
	var value uint64
	it := coll.Maps["counts"].Iterate()
	for it.Next(&key, &value) {
		fmt.Println(key, value)
	}
	if err := it.Err(); err != nil {
		log.Fatal(err)
	}
}

// The programs of an object file run where their sections say, and what they leave is
// printed.
func ExampleLoadObject() {
	programs, err := trapless.LoadObject("counts.bpf.o", trapless.ObjectOptions{
		Attach: map[string][]string{"count": {"uretprobe:/bin/bash:readline"}},
		Set:    map[string]string{"threshold": "100"}, // const volatile int threshold;
	})
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s, err := trapless.Attach(ctx, 1234, programs, trapless.Options{Output: os.Stdout})
	if err != nil {
		log.Fatal(err)
	}
	if err := s.Run(ctx); err != nil {
		log.Print(err)
	}
	if err := s.Close(); err != nil {
		log.Fatal(err)
	}
}
