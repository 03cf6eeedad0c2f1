package session

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"trapless/internal/arena"
	"trapless/internal/image"
	"trapless/internal/proc"
	"trapless/internal/ptrace"
)

// A session that follows probes the processes that its target makes, from their
// first instruction, and the programs that they become, from before main: the tracer
// stays attached, and each of them is a member of the session (see fleet.go). The
// session goes on until the last of them has ended.

// family is what is followed.
type family struct {
	head   *Session
	others []*other
	images *imageCache
	exe    string // the first program, which patterns without a path mean
}

// other is a followed process that is no member.
type other struct {
	group *ptrace.Group
	later bool // its program is Go's, and has not put its signal handlers in place yet
}

// readyTime bounds how long a newborn process is held before it is probed.
const readyTime = 5 * time.Second

// follow makes a session one that follows.
func (s *Session) follow() {
	exe, _ := proc.Exe(s.PID) // without it, patterns have paths
	s.family = &family{head: s, images: &imageCache{}, exe: exe}
	s.past, s.added = make([][]arena.Entry, len(s.config.Script.Maps)), s.addedMaps()
}

// follows reports whether the session is one that follows, or a member of one: these
// have one tracer.
func (s *Session) follows() bool { return s.family != nil || s.parent != nil && s.parent.family != nil }

// kin is the family that the session is of, nil if there is none.
func (s *Session) kin() *family {
	if s.parent != nil {
		return s.parent.family
	}
	return s.family
}

// look follows what has been born, and looks at those that are no members.
func (f *family) look() {
	f.births()
	f.others = slices.DeleteFunc(f.others, func(o *other) bool {
		switch {
		case o.group.Ended():
			_ = o.group.Close() // a descriptor for reading
			return true
		case o.later && handlesTraps(o.group.PID):
			o.later = false
			return f.probe(o.group)
		}
		return false
	})
}

// births probes what has been born, and lets it run.
func (f *family) births() {
	for _, n := range f.head.tracer.Born() {
		f.adopt(n)
	}
}

// lives reports whether there is anything left to look at.
func (f *family) lives() bool {
	h := f.head
	if len(h.members)+len(f.others) > 0 || !h.group.Ended() && !ended(h.PID) {
		return true
	}
	f.births() // the last one may just have become another program
	return len(h.members)+len(f.others) > 0
}

func (f *family) adopt(n ptrace.Newborn) {
	if n.Late {
		f.head.config.Warn("process %d runs without probes, and what it starts: there was no time to put them in before it had waited for long", n.PID)
		_ = n.Close() // nothing was opened
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), readyTime)
	defer cancel()
	o := &other{group: n.Group}
	err := n.Ready(ctx)
	if err == nil && n.Exec {
		o.later = runsGo(n.PID, f.images)
	}
	if err != nil || o.later || !f.probe(n.Group) {
		f.others = append(f.others, o)
	}
	if n.Held() {
		err = errors.Join(err, n.Resume())
	}
	if err != nil && !gone(err) {
		f.head.config.Log("%v", err)
	}
}

// probe makes a process a member, if there is something to probe in it.
func (f *family) probe(g *ptrace.Group) bool {
	h := f.head
	c := h.config
	c.Warn = c.Log // the first one has told it
	m, err := newSession(c)
	if err != nil {
		return false // it was verified before
	}
	m.PID, m.parent, m.tracer, m.group = g.PID, h, h.tracer, g
	if err = m.plan(); err == nil && !m.registry.concerned() {
		err = fmt.Errorf("nothing in it %w", ErrNothing)
	}
	if err == nil {
		err = m.start(context.Background())
	}
	if err == nil || m.armed && gone(err) { // it may have done all that it had to
		h.include(m)
		return true
	}
	c.Log("process %d is not probed: %v", m.PID, err)
	if err := m.abandon(); err != nil && !gone(err) {
		c.Log("process %d: %v", m.PID, err)
	}
	return false
}

// abandon is Close, but the process is still followed.
func (s *Session) abandon() error {
	var err error
	if s.armed {
		err = s.disarm()
	}
	if s.registry != nil {
		s.registry.Close()
	}
	if s.symbols != nil {
		s.symbols.Close()
	}
	if s.target != nil {
		err = errors.Join(err, s.target.Close())
	}
	return err
}

// concerned reports whether a process has something that is to be probed, or may
// load it.
func (r *registry) concerned() bool {
	for _, p := range r.probes {
		if !p.pattern.internal {
			return true
		}
	}
	return slices.ContainsFunc(r.patterns, func(p *pattern) bool { return !p.internal && r.ms.mayCome(p.attach) })
}

// end lets go of all that are no members, and follows nobody any more.
func (f *family) end() {
	if f.head.tracer != nil { // it is nil where planning failed
		f.head.tracer.Follow(false)
	}
	for _, o := range f.others {
		if err := o.group.Detach(context.Background()); err != nil && !gone(err) {
			f.head.config.Log("%v", err)
		}
		_ = o.group.Close() // a descriptor for reading
	}
	f.others = nil
}

// runsGo reports whether a program is Go's.
func runsGo(pid int, images *imageCache) bool {
	ms, err := readModules(pid, images)
	if err != nil {
		return false
	}
	defer ms.Close()
	exe, err := ms.executable()
	return err == nil && exe != nil && exe.image.Go
}

// handlesTraps reports whether a process has a handler for SIGTRAP, as Go programs
// have when they have begun.
func handlesTraps(pid int) bool {
	st, err := proc.ReadStatus(pid, pid)
	return err == nil && st.Caught.Has(sigTRAP)
}

// imageCache holds the files that processes of a family have in common, each read once.
type imageCache struct {
	all map[imageKey]*cachedImage
}

type imageKey struct {
	inode, size uint64
	major       uint32
	minor       uint32
	changed     time.Time
}

type cachedImage struct {
	file  *os.File
	stat  os.FileInfo
	image *image.File
	funcs *image.Functions
}

// load gives a module what was read of its file, and reports whether it was there.
func (c *imageCache) load(mod *module, m *proc.Mapping, st os.FileInfo) bool {
	if c == nil {
		return false
	}
	have := c.all[keyOfImage(m, st)]
	if have == nil {
		return false
	}
	mod.file.Close()
	mod.file, mod.stat, mod.image, mod.funcs, mod.cached = have.file, have.stat, have.image, have.funcs, true
	return true
}

// keep notes what was read of a file.
func (c *imageCache) keep(mod *module, m *proc.Mapping) {
	if c == nil {
		return
	}
	if c.all == nil {
		c.all = map[imageKey]*cachedImage{}
	}
	c.all[keyOfImage(m, mod.stat)] = &cachedImage{mod.file, mod.stat, mod.image, mod.funcs}
	mod.cached = true
}

// Close closes the files.
func (c *imageCache) Close() {
	for _, i := range c.all {
		i.file.Close()
	}
	c.all = nil
}

func keyOfImage(m *proc.Mapping, st os.FileInfo) imageKey {
	return imageKey{m.Inode, uint64(st.Size()), m.Major, m.Minor, st.ModTime()}
}
