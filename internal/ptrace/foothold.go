package ptrace

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"

	"trapless/internal/abi"
	x86 "trapless/internal/asm/x86"
	"trapless/internal/proc"
)

// The foothold is a small region of the target that is mapped readable and
// executable, never writable: the tracer fills it through /proc/PID/mem. Its
// first page is ours: a header by which a later tracer finds it again, and slots
// for injected code. The rest belongs to the caller. Behind the region lies a
// page that injected code writes its results to, the mailbox.
//
// A slot is armed before its code is written and disarmed when the thread has
// been seen outside. When a tracer dies in between, the slot stays armed: a
// saved PC of the thread may point there, so its bytes are never overwritten.

// home is the foothold of a group.
type home struct {
	abi.Range
	mailbox abi.Addr
}

// Layout of the first page.
const (
	homeMagic   = 0  // 16 bytes
	homeVersion = 16 // u32
	homeSelf    = 24 // u64: its own address
	homeSize    = 32 // u64
	homeMailbox = 40 // u64
	homeSum     = 48 // u64: of the bytes before
	homeArmed   = 64 // a byte for each slot

	slotsStart = 256
	slotSize   = 768
	slotCount  = (abi.PageSize - slotsStart) / slotSize

	homeFormat = 1
)

var magic = []byte("trapless\x00foothld")

func (h *home) slot(i int) abi.Range {
	at := h.Start + slotsStart + abi.Addr(i*slotSize)
	return abi.Range{Start: at, End: at + slotSize}
}

// header is what a later tracer recognises.
func (h *home) header() []byte {
	b := make([]byte, slotsStart)
	copy(b[homeMagic:], magic)
	binary.LittleEndian.PutUint32(b[homeVersion:], homeFormat)
	binary.LittleEndian.PutUint64(b[homeSelf:], uint64(h.Start))
	binary.LittleEndian.PutUint64(b[homeSize:], h.Len())
	binary.LittleEndian.PutUint64(b[homeMailbox:], uint64(h.mailbox))
	binary.LittleEndian.PutUint64(b[homeSum:], headerSum(b))
	return b
}

func headerSum(b []byte) uint64 {
	f := fnv.New64a()
	f.Write(b[:homeSum])
	return f.Sum64()
}

// parseHome checks the header of a region at an address.
func parseHome(b []byte, at abi.Addr) (*home, bool) {
	if !bytes.Equal(b[homeMagic:homeMagic+len(magic)], magic) ||
		binary.LittleEndian.Uint32(b[homeVersion:]) != homeFormat ||
		binary.LittleEndian.Uint64(b[homeSelf:]) != uint64(at) ||
		binary.LittleEndian.Uint64(b[homeSum:]) != headerSum(b) {
		return nil, false
	}
	size := binary.LittleEndian.Uint64(b[homeSize:])
	return &home{
		Range:   abi.Range{Start: at, End: at + abi.Addr(size)},
		mailbox: abi.Addr(binary.LittleEndian.Uint64(b[homeMailbox:])),
	}, true
}

// free finds a slot that is not armed.
func (h *home) free(g *Group) (int, error) {
	armed := make([]byte, slotCount)
	if err := g.mem.ReadAt(armed, h.Start+homeArmed); err != nil {
		return 0, err
	}
	if i := bytes.IndexByte(armed, 0); i >= 0 {
		return i, nil
	}
	return 0, refuse(g.PID, ReasonFailed, "tracers died %d times while code ran in the foothold at %v, and it is full; start a new foothold", slotCount, h.Start)
}

// arm marks a slot as used, then fills it and clears the mailbox.
func (h *home) arm(g *Group, slot int, code []byte, calls int) error {
	if err := g.mem.writeText([]byte{1}, h.Start+homeArmed+abi.Addr(slot)); err != nil {
		return err
	}
	mail := make([]byte, mailResults+8*calls)
	for i := range calls {
		binary.LittleEndian.PutUint64(mail[mailResults+8*i:], notRun)
	}
	if h.mailbox != 0 {
		if err := g.mem.WriteAt(mail, h.mailbox); err != nil {
			return err
		}
	}
	return g.mem.writeText(code, h.slot(slot).Start)
}

func (h *home) disarm(g *Group, slot int) error {
	return g.mem.writeText([]byte{0}, h.Start+homeArmed+abi.Addr(slot))
}

// Foothold maps a region of size bytes (whole pages, at least one) at an address
// and, behind it, the mailbox page; both must be free, and away from where the
// heap and the stacks grow. With the address 0 it finds a place. It returns the
// region; its first page is used by Run. The group has to run, or be stopped.
//
// Errors: ErrNoSlack when no executable file mapping has room for the first
// instructions; ErrNoThread, ErrSeccomp, ErrDispatch, ErrStopped as for Run;
// ErrFailed when the kernel refused the mapping.
func (g *Group) Foothold(ctx context.Context, at abi.Addr, size uint64) (region abi.Range, err error) {
	err = g.t.do(func() error {
		region, err = g.foothold(ctx, at, size)
		return g.verdict(err)
	})
	return region, err
}

func (g *Group) foothold(ctx context.Context, at abi.Addr, size uint64) (abi.Range, error) {
	if size == 0 || size%abi.PageSize != 0 || at%abi.PageSize != 0 {
		panic("BUG: a foothold is whole pages")
	}
	maps, err := proc.ReadMaps(g.PID)
	if err != nil {
		return abi.Range{}, err
	}
	if at == 0 {
		if at, err = freePlace(g.PID, maps, size+abi.PageSize); err != nil {
			return abi.Range{}, err
		}
	}
	h := &home{Range: abi.Range{Start: at, End: at + abi.Addr(size)}}
	h.mailbox = h.End
	if !maps.Free(abi.Range{Start: h.Start, End: h.mailbox + abi.PageSize}) {
		return abi.Range{}, refuse(g.PID, ReasonFailed, "there is a mapping at %v already", at)
	}
	if err := g.mapThroughSlack(ctx, maps, h); err != nil {
		return abi.Range{}, err
	}
	if err := g.withStopped(ctx, func() error { return g.mem.writeText(h.header(), h.Start) }); err != nil {
		return abi.Range{}, err
	}
	g.home = h
	if err := g.mapMailbox(ctx); err != nil {
		g.home = nil
		return abi.Range{}, err
	}
	return h.Range, nil
}

// freePlace is the middle of the largest gap: as far as can be from whatever
// grows.
func freePlace(pid int, maps proc.Maps, size uint64) (abi.Addr, error) {
	const lo, hi = abi.Addr(1 << 20), abi.Addr(1<<47 - abi.PageSize)
	var best abi.Range
	for _, gap := range maps.Gaps(lo, hi) {
		if gap.Len() > best.Len() {
			best = gap
		}
	}
	if best.Len() < 3*size {
		return 0, refuse(pid, ReasonFailed, "there is no free address range of %d bytes", size)
	}
	return (best.Start + abi.Addr(best.Len()/2)).PageDown(), nil
}

// withStopped runs f while at least one thread is stopped, which writing text
// may need.
func (g *Group) withStopped(ctx context.Context, f func() error) error {
	err := f()
	if err == nil || g.anyStopped() != nil {
		return err
	}
	p, perr := g.pick(ctx, func(*Thread) error { return nil })
	if perr != nil {
		return perr
	}
	defer p.th.unhold()
	return f()
}

// FindFoothold finds the region that an earlier tracer mapped, makes it the
// group's and returns it; ok is false when there is none that can be used. The
// group has to be attached.
func (g *Group) FindFoothold(ctx context.Context) (region abi.Range, ok bool, err error) {
	err = g.t.do(func() error {
		ok, err = g.useHome(ctx)
		if ok {
			region = g.home.Range
		}
		return g.verdict(err)
	})
	return region, ok, err
}

func (g *Group) useHome(ctx context.Context) (bool, error) {
	maps, err := proc.ReadMaps(g.PID)
	if err != nil {
		return false, err
	}
	h, err := g.findHome(maps)
	if err != nil || h == nil {
		return false, err
	}
	g.home = h
	if err := g.mapMailbox(ctx); err != nil {
		g.home = nil
		return false, err
	}
	return true, nil
}

// verdict replaces an error by its cause when the address space has ended: what
// was read of the process then was that of another program, or nothing.
func (g *Group) verdict(err error) error {
	if err == nil || g.mem == nil || g.mem.Alive() {
		return err
	}
	g.t.pump()
	if g.over != nil {
		return g.over
	}
	return refuse(g.PID, ReasonGone, "its address space has ended (%v)", err)
}

// maxScan bounds how many pages are looked at for a header. Regions of equal
// protection that touch are one mapping, so it need not be the first page.
const maxScan = 1 << 13

func (g *Group) findHome(maps proc.Maps) (*home, error) {
	var b [slotsStart]byte
	scanned := 0
	for i := range maps {
		m := &maps[i]
		if m.Perm != proc.Read|proc.Exec || m.File() || m.Path != "" {
			continue
		}
		for at := m.Start; at < m.End && scanned < maxScan; at += abi.PageSize {
			scanned++
			if err := g.mem.ReadAt(b[:], at); err != nil {
				return nil, err
			}
			h, ok := parseHome(b[:], at)
			if !ok || h.End > m.End || h.mailbox != h.End {
				continue
			}
			if bytes.IndexByte(b[homeArmed:homeArmed+slotCount], 0) < 0 {
				continue // full
			}
			return h, nil
		}
	}
	return nil, nil
}

// Home is the group's foothold.
func (g *Group) Home() (region abi.Range, ok bool) {
	_ = g.t.do(func() error {
		if g.home != nil {
			region, ok = g.home.Range, true
		}
		return nil
	})
	return region, ok
}

// Arguments of mmap(2).
const (
	sysMmap      = 9
	protRead     = 1
	protWrite    = 2
	protExec     = 4
	mapPrivate   = 0x02
	mapAnonymous = 0x20
	mapNoReplace = 0x100000 // MAP_FIXED_NOREPLACE
)

// mapMailbox maps the page behind the region unless an earlier tracer did.
func (g *Group) mapMailbox(ctx context.Context) error {
	h := g.home
	want := abi.Range{Start: h.mailbox, End: h.mailbox + abi.PageSize}
	for {
		maps, err := proc.ReadMaps(g.PID)
		if err != nil {
			return err
		}
		if m := maps.Find(h.mailbox); m != nil {
			if m.Perm != proc.Read|proc.Write || m.File() {
				return refuse(g.PID, ReasonFailed, "something else is mapped at %v, behind the foothold", h.mailbox)
			}
			return nil
		}
		slot, err := h.free(g)
		if err != nil {
			return err
		}
		hidden := *h
		hidden.mailbox = 0
		err = g.callOnce(ctx, &oneCall{room: h.slot(slot), mapping: want, prot: protRead | protWrite,
			put:   func(code []byte) error { return hidden.arm(g, slot, code, 0) },
			clean: func() error { return hidden.disarm(g, slot) }})
		if err != nil {
			return err
		}
	}
}

// oneCall is one anonymous mapping made by the smallest possible code: the
// arguments come with the registers, and the result is seen in the target's maps.
type oneCall struct {
	room    abi.Range
	mapping abi.Range
	prot    uint64
	put     func(code []byte) error
	clean   func() error // after the thread has left
}

// errRoom: the code for this thread is longer than the room.
var errRoom = errors.New("no room")

// callOnce tries once to make the call; a signal may come between. Whether the
// mapping is there is for the caller to look.
func (g *Group) callOnce(ctx context.Context, c *oneCall) error {
	call := sysCall{nr: sysMmap, args: []Arg{AddrArg(c.mapping.Start), Const(c.mapping.Len()), Const(c.prot),
		Const(mapPrivate | mapAnonymous | mapNoReplace), Const(^uint64(0)), Const(0)}}
	p, err := g.pick(ctx, func(th *Thread) error { return th.checkCalls([]sysCall{call}, c.room.Start) })
	if err != nil {
		return err
	}
	defer p.th.unhold()
	entry, then := p.orig, p.then()
	changed := setCall(&entry, c)
	code, err := returnCode(c.room.Start, changed, &then, g.dependent(), g.newborn)
	if err != nil {
		return err
	}
	if len(code) > int(c.room.Len()) {
		return errRoom
	}
	if err := c.put(code); err != nil {
		return err
	}
	if err := p.prepare(); err != nil {
		return err
	}
	entry.RIP = uint64(c.room.Start)
	inside, err := g.execute(ctx, p, c.room, c.room.Start+stage0Tail, &entry, c.visible(g))
	if p.th.state == stateRunning {
		return err
	}
	if cerr := c.clean(); err == nil {
		err = cerr
	}
	if err != nil || inside != nil && inside.RIP < uint64(c.room.Start+stage0Tail) || p.th.state == stateGone {
		return err
	}
	return g.mapped(c)
}

// stage0Tail is where stage 0 has made its call.
const stage0Tail = syscallInsnLen

// visible is a cheap look at whether the mapping is there.
func (c *oneCall) visible(g *Group) func() bool {
	return func() bool {
		var b [1]byte
		return g.mem.read(b[:], c.mapping.Start) == nil
	}
}

// mapped: the call was made. Is the mapping there?
func (g *Group) mapped(c *oneCall) error {
	maps, err := proc.ReadMaps(g.PID)
	if err != nil {
		return err
	}
	if maps.Find(c.mapping.Start) == nil {
		return refuse(g.PID, ReasonFailed, "mmap of %d bytes at %v failed in it: a limit (ulimit -v, vm.max_map_count), or a security module that forbids it (SELinux execmem)",
			c.mapping.Len(), c.mapping.Start)
	}
	return nil
}

// setCall puts the arguments of the mmap into registers and says which registers
// the call changes. The descriptor (r8) means nothing for an anonymous mapping,
// and the offset (r9) only has to be a multiple of the page size, so they mostly
// stay what they are.
func setCall(r *Regs, c *oneCall) []x86.Reg {
	changed := []x86.Reg{x86.RAX, x86.RCX, x86.R11, x86.RDI, x86.RSI, x86.RDX, x86.R10}
	r.RAX = sysMmap
	r.RDI, r.RSI, r.RDX = uint64(c.mapping.Start), c.mapping.Len(), c.prot
	r.R10 = mapPrivate | mapAnonymous | mapNoReplace
	if r.R9%abi.PageSize != 0 || r.R9>>63 != 0 {
		r.R9 = 0
		changed = append(changed, x86.R9)
	}
	return changed
}

// returnCode is the code of stage 0: syscall, restore, jump. At most 99 bytes, and 15
// more in a newborn process.
func returnCode(at abi.Addr, changed []x86.Reg, then *Regs, stays, newborn bool) ([]byte, error) {
	a := x86.New(at)
	a.Syscall()
	if stays {
		emitStay(a)
	} else {
		if newborn {
			emitLinger(a, staysBorn)
		}
		emitReturn(a, changed, then)
	}
	code, err := a.Bytes()
	if err != nil {
		return nil, fmt.Errorf("stage 0: %w", err)
	}
	return code, nil
}
