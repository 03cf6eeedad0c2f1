package trapless

import (
	"fmt"
	"io"
	"path/filepath"

	"github.com/cilium/ebpf"

	"trapless/internal/export/text"
	"trapless/internal/object"
	"trapless/internal/session"
)

// Programs for the kernel's uprobes, written in C and compiled by clang, run in
// processes as they are:
//
//	programs, err := trapless.LoadObject("counts.bpf.o", trapless.ObjectOptions{})
//	...
//	s, err := trapless.Attach(ctx, pid, programs, trapless.Options{Output: os.Stdout})
//
// What they write goes to Options.Output: the records of rings and the lines of
// trace_printk as they come, the maps at the end of Run. See Collection for an API
// like that of package ebpf of cilium.

// ErrObject wraps every reason why a BPF object cannot be used.
var ErrObject = object.ErrObject

// ObjectOptions are what is said beside an object file.
type ObjectOptions = object.Options

// LoadObject reads a BPF object file and verifies its programs. They are put where
// their sections say, SEC("uprobe//bin/bash:readline"), or where the options say.
func LoadObject(path string, o ObjectOptions) (*Script, error) {
	spec, err := LoadCollectionSpec(path)
	if err != nil {
		return nil, err
	}
	return LoadSpec(filepath.Base(path), spec, o)
}

// LoadCollectionSpec is that of package ebpf for files that it does not read, too:
// those that include libbpf's header for USDT.
func LoadCollectionSpec(path string) (*ebpf.CollectionSpec, error) {
	spec, err := object.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("%w %w", ErrObject, err)
	}
	return spec, nil
}

// LoadSpec is LoadObject for a collection that was read already, or made by hand.
// It is not changed. name is what messages call it.
func LoadSpec(name string, spec *ebpf.CollectionSpec, o ObjectOptions) (*Script, error) {
	obj, err := object.New(name, spec, o)
	if err != nil {
		return nil, err
	}
	return &Script{compiled: obj.Script(), object: obj}, nil
}

// Programs are the names of the programs of a BPF object, in order.
func (s *Script) Programs() []string {
	var out []string
	if s.object != nil {
		for i := range s.object.Programs {
			out = append(out, s.object.Programs[i].Name)
		}
	}
	return out
}

// Unattached are the programs of a BPF object of which it is not said where they
// are to be put.
func (s *Script) Unattached() []string {
	var out []string
	if s.object != nil {
		for i := range s.object.Programs {
			if p := &s.object.Programs[i]; len(p.Attach) == 0 && !p.TailCalled {
				out = append(out, p.Name)
			}
		}
	}
	return out
}

// configObject adds to a session's configuration what an object wants.
func (o Options) configObject(c *session.Config, obj *object.Object) {
	c.RingSize = obj.RingSize()
	for n := range obj.Maps {
		for _, e := range obj.Maps[n].Contents {
			c.Contents = append(c.Contents, session.Content{Map: n, Key: e.Key, Value: e.Value})
		}
	}
	w := o.Output
	if w == nil {
		w = io.Discard
	}
	if o.JSON {
		c.Object = &text.ObjectJSON{W: w, Maps: obj.Maps}
	} else {
		c.Object = &text.Object{W: w, Maps: obj.Maps}
	}
}
