package bpf

import (
	"encoding/binary"
	"math/bits"

	"github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
)

// The interpreter gives everything that a program can point to an address of
// its own, far from the others, so that any access outside an object is seen.
// References to maps and functions are addresses where nothing lies.
const (
	contextAddr  = 1 << 40
	memoryAddr   = 2 << 40
	stackAddr    = 3 << 40 // frames, frameStride apart
	mapRefAddr   = 4 << 40
	funcRefAddr  = 5 << 40
	recordAddr   = 6 << 40  // records, frameStride apart
	keyAddr      = 7 << 40  // keys that for_each_map_elem shows, by the frame of the function
	otherAddr    = 8 << 40  // values of other slots, frameStride apart
	valueAddr    = 16 << 40 // map m's values begin at (16+m) << 40
	frameStride  = 1 << 20
	spaceShift   = 40
	valueMinStep = 256
)

// frameAddr is what r10 is in frame n.
func frameAddr(n int) uint64 { return stackAddr + uint64(n+1)*frameStride }

func mapRef(number int64) uint64 { return mapRefAddr + uint64(number)<<8 }
func funcRef(start int) uint64   { return funcRefAddr + uint64(start)<<8 }

// valueStep is the distance between values, whose size it leaves room behind.
func valueStep(ml *abi.MapLayout) uint64 {
	return max(valueMinStep, uint64(2)<<bits.Len(uint(ml.ValueSize)))
}

// valueAddr is the address of the value at a position of a map.
func (x *run) valueAddr(m int, pos uint64) uint64 {
	return valueAddr + uint64(m)<<spaceShift + pos*valueStep(&x.Layout.Maps[m])
}

// bytes is the memory at an address: size bytes of one object, for reading or
// for writing.
func (x *run) bytes(addr uint64, size int, write bool) ([]byte, error) {
	var mem []byte
	switch space := addr >> spaceShift; {
	case space == stackAddr>>spaceShift:
		return x.stackBytes(addr, size, write)
	case space == recordAddr>>spaceShift:
		if n := (addr - recordAddr) / frameStride; n < uint64(len(x.records)) {
			mem = tail(x.records[n].data, (addr-recordAddr)%frameStride)
		}
	case space == keyAddr>>spaceShift && !write:
		if n := (addr - keyAddr) / frameStride; n < uint64(len(x.frames)) && x.frames[n].loop != nil {
			mem = tail(x.frames[n].loop.key, (addr-keyAddr)%frameStride)
		}
	case space == otherAddr>>spaceShift:
		if n := (addr - otherAddr) / frameStride; n < uint64(len(x.others)) {
			mem = tail(x.others[n].bytes(x), (addr-otherAddr)%frameStride)
		}
	case space == memoryAddr>>spaceShift:
		mem = tail(x.mem, addr-memoryAddr)
	case space >= valueAddr>>spaceShift && space-valueAddr>>spaceShift < uint64(len(x.code.Maps)):
		mem = x.valueBytes(int(space-valueAddr>>spaceShift), addr&(1<<spaceShift-1))
	}
	if len(mem) < size || size < 0 {
		return nil, x.fail(ErrAccess, "%d bytes at %#x are no memory of the program", size, addr)
	}
	return mem[:size], nil
}

func tail(b []byte, off uint64) []byte {
	if off > uint64(len(b)) {
		return nil
	}
	return b[off:]
}

// valueBytes is the rest of the value that off points into.
func (x *run) valueBytes(m int, off uint64) []byte {
	ml := &x.Layout.Maps[m]
	pos, in := off/valueStep(ml), off%valueStep(ml)
	if pos >= uint64(ml.Positions()) || in > uint64(ml.ValueSize) {
		return nil
	}
	at := x.valueAt(ml, pos)
	return x.Arena[at+in : at+uint64(ml.ValueSize)]
}

func (x *run) stackBytes(addr uint64, size int, write bool) ([]byte, error) {
	n := (addr - stackAddr) / frameStride
	pos := int64(addr) - int64(frameAddr(int(n))) + StackSize
	if n >= uint64(len(x.frames)) || pos < 0 || size < 0 || pos+int64(size) > StackSize {
		return nil, x.fail(ErrAccess, "%d bytes at frame %d, r10%+d are outside the stack", size, n, pos-StackSize)
	}
	f := x.frames[n]
	for i := pos; i < pos+int64(size); i++ {
		if !write && !f.written[i] {
			return nil, x.fail(ErrAccess, "the byte at frame %d, r10%+d was not written", n, i-StackSize)
		}
		f.written[i] = true
	}
	return f.stack[pos : pos+int64(size)], nil
}

// access is the memory at a register and an offset.
func (x *run) access(r asm.Register, in *Insn, write bool) ([]byte, error) {
	base, err := x.get(r)
	if err != nil {
		return nil, err
	}
	return x.bytes(base+uint64(int64(in.Off)), in.Size, write)
}

func (x *run) load(in *Insn) error {
	base, err := x.get(in.Src)
	if err != nil {
		return err
	}
	addr := base + uint64(int64(in.Off))
	if addr>>spaceShift == contextAddr>>spaceShift {
		return x.loadContext(in, addr-contextAddr)
	}
	mem, err := x.bytes(addr, in.Size, false)
	if err != nil {
		return err
	}
	x.set(in.Dst, extend(loadBytes(mem, in.Size), in.Size, in.Signed))
	return nil
}

func (x *run) loadContext(in *Insn, off uint64) error {
	if x.ctx == nil || off >= ContextEnd || !readableContext(int32(off&^7)) || off%8+uint64(in.Size) > 8 {
		return x.fail(ErrAccess, "%d bytes at %d of the context cannot be read", in.Size, off)
	}
	x.set(in.Dst, extend(x.ctx[off/8]>>(off%8*8), in.Size, in.Signed))
	return nil
}

// extend makes 64 bits of the low size bytes of v.
func extend(v uint64, size int, signed bool) uint64 {
	shift := 64 - 8*size
	if signed {
		return uint64(int64(v<<shift) >> shift)
	}
	return v << shift >> shift
}

func (x *run) store(in *Insn) error {
	v, err := x.operand(in)
	if err != nil {
		return err
	}
	mem, err := x.access(in.Dst, in, true)
	if err != nil {
		return err
	}
	storeBytes(mem, in.Size, v)
	return nil
}

// atomic need not be atomic: only this run writes to its stack and its cells.
func (x *run) atomic(in *Insn) error {
	src, err := x.get(in.Src)
	if err != nil {
		return err
	}
	if in.Atomic == asm.CmpXchg {
		if _, err := x.get(asm.R0); err != nil {
			return err
		}
	}
	mem, err := x.access(in.Dst, in, false)
	if err != nil {
		return err
	}
	old := loadBytes(mem, in.Size)
	storeBytes(mem, in.Size, in.update(old, extend(src, in.Size, false), x.r[asm.R0]))
	switch {
	case in.Atomic == asm.CmpXchg:
		x.set(asm.R0, old)
	case in.Fetches():
		x.set(in.Src, old)
	}
	return nil
}

func loadBytes(b []byte, size int) uint64 {
	switch size {
	case 1:
		return uint64(b[0])
	case 2:
		return uint64(binary.LittleEndian.Uint16(b))
	case 4:
		return uint64(binary.LittleEndian.Uint32(b))
	}
	return binary.LittleEndian.Uint64(b)
}

func storeBytes(b []byte, size int, v uint64) {
	switch size {
	case 1:
		b[0] = byte(v)
	case 2:
		binary.LittleEndian.PutUint16(b, uint16(v))
	case 4:
		binary.LittleEndian.PutUint32(b, uint32(v))
	default:
		binary.LittleEndian.PutUint64(b, v)
	}
}
