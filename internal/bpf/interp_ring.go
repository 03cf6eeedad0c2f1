package bpf

import (
	"github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
)

// ringArg is the map that a register refers to, which must be one of records.
func (x *run) ringArg(r asm.Register) (int, error) {
	m, err := x.mapArg(r)
	if err == nil && !x.Layout.Maps[m].IsRing() {
		err = x.fail(ErrAccess, "map %s takes no records", x.Layout.Maps[m].Name)
	}
	return m, err
}

// output is ringbuf_output or perf_event_output to a map.
func (x *run) output(ring, data, size asm.Register) (uint64, error) {
	m, err := x.ringArg(ring)
	if err != nil {
		return 0, err
	}
	mem, err := x.bytes(x.r[data], int(x.r[size]), false)
	if err != nil {
		return 0, err
	}
	return x.emit(m, mem), nil
}

// emit writes a record to a map.
func (x *run) emit(m int, data []byte) uint64 {
	e := int64(errTooBig)
	if len(data) == 0 || len(data) > abi.MaxRecord-abi.RecPayload {
		return uint64(e)
	}
	if x.MapEvent != nil && x.MapEvent(m, data) {
		return 0
	}
	addWord(x.Arena, x.slotBase()+abi.SlotDrops, 1)
	e = errAgain
	return uint64(e)
}

// reserve is ringbuf_reserve: the address of a record.
func (x *run) reserve() (uint64, error) {
	m, err := x.ringArg(asm.R1)
	if err != nil {
		return 0, err
	}
	if size := x.r[asm.R2]; size == 0 || size > abi.MaxRecord {
		return 0, x.fail(ErrAccess, "a record of %d bytes", size)
	}
	x.records = append(x.records, record{m, make([]byte, x.r[asm.R2])})
	return recordAddr + uint64(len(x.records)-1)*frameStride, nil
}

// submit is ringbuf_submit, or ringbuf_discard.
func (x *run) submit(keep bool) error {
	n := (x.r[asm.R1] - recordAddr) / frameStride
	if n >= uint64(len(x.records)) || (x.r[asm.R1]-recordAddr)%frameStride != 0 || x.records[n].data == nil {
		return x.fail(ErrAccess, "r1 is no record")
	}
	r := x.records[n]
	x.records[n].data = nil
	if keep {
		x.emit(r.ring, r.data)
	}
	return nil
}

// ringQuery is ringbuf_query.
func (x *run) ringQuery() (uint64, error) {
	if _, err := x.ringArg(asm.R1); err != nil {
		return 0, err
	}
	consumed, produced := loadWord(x.Arena, x.slotBase()+abi.SlotRingTail), loadWord(x.Arena, x.slotBase()+abi.SlotRingHead)
	switch x.r[asm.R2] {
	case RingAvailable:
		return produced - consumed, nil
	case RingSize:
		return x.Layout.RingSize, nil
	case RingConsumed:
		return consumed, nil
	case RingProduced:
		return produced, nil
	}
	return 0, nil
}

// trace is trace_printk, or trace_vprintk. An argument that was not written is 0.
func (x *run) trace(array bool) (uint64, error) {
	format, err := x.bytes(x.r[asm.R1], int(uint32(x.r[asm.R2])), false)
	if err != nil {
		return 0, err
	}
	var args []uint64
	if array {
		data, err := x.bytes(x.r[asm.R3], int(uint32(x.r[asm.R4])), false)
		if err != nil && x.r[asm.R4] != 0 {
			return 0, err
		}
		for ; len(data) >= 8; data = data[8:] {
			args = append(args, loadBytes(data, 8))
		}
	} else {
		for r := asm.R3; r <= asm.R5; r++ {
			v := uint64(0)
			if x.have>>r&1 != 0 {
				v = x.r[r]
			}
			args = append(args, v)
		}
	}
	if len(format) == 0 || len(format) > maxTraceFormat || len(args) > maxTraceArgs {
		return 0, x.fail(ErrAccess, "a format of %d bytes with %d arguments", len(format), len(args))
	}
	return x.emit(TraceMap, tracePayload(format, args)), nil
}
