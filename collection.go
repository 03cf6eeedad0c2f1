package trapless

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"

	"trapless/internal/lang"
	"trapless/internal/object"
	"trapless/internal/session"
)

// Collection is the programs and maps of an ebpf.CollectionSpec, inside a process
// instead of the kernel. What is written for package ebpf of cilium moves over by
// the line that makes the collection:
//
//	coll, err := ebpf.NewCollection(spec)
//	coll, err := trapless.NewCollection(spec, trapless.CollectionOptions{PID: pid})
//
// and by taking OpenExecutable and NewReader from this package instead of from link,
// ringbuf and perf: all else has the same names and meaning. No program runs until
// it is put somewhere, by an Executable or by AttachSections.
//
// A goroutine polls the process until Close, or until the process ends. The methods
// of a collection, and of what it consists of, may be called from any goroutine.
type Collection struct {
	Programs map[string]*Program
	Maps     map[string]*Map

	session *session.Session
	object  *object.Object
	rings   ringSink
	cancel  context.CancelFunc
	done    chan struct{}
	err     error // of Run; valid once done is closed
}

// CollectionOptions are what a collection is made with.
type CollectionOptions struct {
	PID         int                              // the process
	Print       io.Writer                        // takes what programs write by trace_printk; nothing if nil
	Warn        func(format string, args ...any) // as in Options
	Log         func(format string, args ...any)
	Breakpoints bool
}

// Program is a program of a collection.
type Program struct {
	coll    *Collection
	number  int
	name    string
	section string
}

// String is the program's name and section.
func (p *Program) String() string { return fmt.Sprintf("%s (%s)", p.name, p.section) }

// NewCollection verifies the programs of a collection and attaches to a process. It
// does not change spec. When it fails the process is as it was.
func NewCollection(spec *ebpf.CollectionSpec, o CollectionOptions) (*Collection, error) {
	obj, err := object.New("collection", spec, object.Options{})
	if err != nil {
		return nil, err
	}
	c := &Collection{Programs: map[string]*Program{}, Maps: map[string]*Map{}, object: obj, done: make(chan struct{})}
	c.rings.init(obj, o.Print)
	script := obj.Script()
	for i := range script.Probes {
		script.Probes[i].Attach = nil
	}
	config := Options{Warn: o.Warn, Log: o.Log, Breakpoints: o.Breakpoints}.config(&Script{compiled: script, object: obj})
	config.Object = &c.rings
	for _, r := range obj.Remarks {
		config.Warn("%s", r)
	}
	if c.session, err = session.Attach(context.Background(), o.PID, config); err != nil {
		return nil, err
	}
	for i := range obj.Programs {
		p := &obj.Programs[i]
		c.Programs[p.Name] = &Program{c, i, p.Name, p.Section}
	}
	for i := range obj.Maps {
		c.Maps[obj.Maps[i].Name] = &Map{coll: c, number: i, Map: &obj.Maps[i]}
	}
	ctx, cancel := context.WithCancel(context.Background())
	c.cancel = cancel
	go func() {
		defer close(c.done)
		c.err = c.session.Run(ctx)
		c.rings.close()
	}()
	return c, nil
}

// Done is closed when the collection is at work no more: after Close, or when the
// process has ended. Its maps can be read until Close.
func (c *Collection) Done() <-chan struct{} { return c.done }

// Close takes the programs out of the process and ends the collection.
func (c *Collection) Close() error {
	c.cancel()
	<-c.done
	err := errors.Join(c.err, c.session.Close())
	c.err = nil
	return err
}

// Session is the session that the collection works by, of which Run and Close must
// not be called.
func (c *Collection) Session() *session.Session { return c.session }

// Link is a program at one or several places.
type Link struct {
	coll *Collection
	ids  []int
}

// Close takes the program out of these places.
func (l *Link) Close() error {
	err := l.coll.session.Unregister(context.Background(), l.ids...)
	if errors.Is(err, ErrEnded) || errors.Is(err, ErrNoProbe) {
		return nil
	}
	return err
}

// AttachSections puts the programs where their sections say.
func (c *Collection) AttachSections() (*Link, error) {
	var specs []ProbeSpec
	for i := range c.object.Programs {
		for _, a := range c.object.Programs[i].Attach {
			specs = append(specs, ProbeSpec{At: place(&a), Program: object.ScriptProbe(i, a.Kind)})
		}
	}
	return c.register(specs)
}

func (c *Collection) register(specs []ProbeSpec) (*Link, error) {
	if len(specs) == 0 {
		return nil, errors.New("it is not said where a program is to be put")
	}
	added, err := c.session.Register(context.Background(), specs...)
	if err != nil {
		return nil, err
	}
	l := &Link{coll: c}
	for _, p := range added {
		l.ids = append(l.ids, p.ID)
	}
	return l, nil
}

// place writes an attach point as scripts have it.
func place(a *lang.AttachPoint) string {
	quote := strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace
	at := a.Kind.String()
	for _, part := range []string{a.Path, a.Provider, a.Func} {
		if part != "" {
			at += `:"` + quote(part) + `"`
		}
	}
	if a.Offset != 0 {
		at += "+" + strconv.FormatUint(a.Offset, 10)
	}
	return at
}

// Executable is a file with functions: a program, or a library.
type Executable struct{ path string }

// UprobeOptions are what Executable's methods take besides.
type UprobeOptions struct {
	Offset uint64 // bytes after the start of the function
	PID    int    // 0, or that of the collection
	Cookie uint64 // what bpf_get_attach_cookie returns to the program

	// Cookies are the same for each of the functions of UprobeMulti or UretprobeMulti,
	// in their order; nil gives all of them Cookie.
	Cookies []uint64
}

// OpenExecutable names the file in which functions are to be probed: by a path as
// the process sees it, or as the short name of a library. It is looked for when a
// program is put there.
func OpenExecutable(path string) (*Executable, error) {
	if path == "" {
		return nil, errors.New("the path of an executable is empty")
	}
	return &Executable{path}, nil
}

// Uprobe runs a program whenever a function is called, or whenever the instruction
// is reached at an offset of it.
func (ex *Executable) Uprobe(symbol string, p *Program, o *UprobeOptions) (*Link, error) {
	return ex.attach(lang.Uprobe, []string{symbol}, p, o)
}

// Uretprobe runs a program whenever a function returns.
func (ex *Executable) Uretprobe(symbol string, p *Program, o *UprobeOptions) (*Link, error) {
	return ex.attach(lang.Uretprobe, []string{symbol}, p, o)
}

// UprobeMulti is Uprobe for several functions. In a name '*' stands for any
// characters.
func (ex *Executable) UprobeMulti(symbols []string, p *Program, o *UprobeOptions) (*Link, error) {
	return ex.attach(lang.Uprobe, symbols, p, o)
}

// UretprobeMulti is Uretprobe for several functions.
func (ex *Executable) UretprobeMulti(symbols []string, p *Program, o *UprobeOptions) (*Link, error) {
	return ex.attach(lang.Uretprobe, symbols, p, o)
}

func (ex *Executable) attach(kind lang.ProbeKind, symbols []string, p *Program, o *UprobeOptions) (*Link, error) {
	if p == nil {
		return nil, errors.New("there is no such program")
	}
	if o == nil {
		o = &UprobeOptions{}
	}
	if o.PID != 0 && o.PID != p.coll.session.PID {
		return nil, fmt.Errorf("the collection is in process %d, not in %d: make one for each process", p.coll.session.PID, o.PID)
	}
	if o.Cookies != nil && len(o.Cookies) != len(symbols) {
		return nil, fmt.Errorf("%d cookies for %d functions", len(o.Cookies), len(symbols))
	}
	var specs []ProbeSpec
	for i, s := range symbols {
		cookie := o.Cookie
		if o.Cookies != nil {
			cookie = o.Cookies[i]
		}
		specs = append(specs, ProbeSpec{Cookie: cookie, At: place(&lang.AttachPoint{Kind: kind, Path: ex.path, Func: s, Offset: o.Offset}), Program: object.ScriptProbe(p.number, kind)})
	}
	return p.coll.register(specs)
}
