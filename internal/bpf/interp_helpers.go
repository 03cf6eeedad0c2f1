package bpf

import (
	"math/bits"
	"math/rand/v2"

	"github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
)

// helper executes a helper whose arguments are in r1 to r5, and returns r0.
func (x *run) helper(h *Helper) (uint64, error) {
	switch h.ID {
	case HelperGetCurrentPidTgid:
		return uint64(x.TGID)<<32 | uint64(x.TID), nil
	case HelperExit:
		storeWord(x.Arena, abi.HdrStop, 1)
		return 0, nil
	case asm.FnKtimeGetNs, asm.FnKtimeGetBootNs, asm.FnKtimeGetCoarseNs:
		if x.Now == nil {
			return 0, x.fail(ErrInvalid, "the machine has no clock")
		}
		return x.Now(), nil
	case asm.FnProbeRead, asm.FnProbeReadUser, asm.FnProbeReadStr, asm.FnProbeReadUserStr:
		return x.probeRead(h)
	case HelperTailCount:
		if x.tails == MaxTailCalls {
			return 0, nil
		}
		x.tails++
		return 1, nil
	case HelperContext:
		if x.ctx == nil {
			return 0, x.fail(ErrAccess, "there is no context")
		}
		return contextAddr, nil
	case asm.FnSnprintf:
		return x.snprintf()
	case asm.FnStrncmp:
		return x.strncmp()
	case asm.FnGetCurrentComm:
		return x.comm()
	case asm.FnGetCurrentUidGid:
		return x.UIDGID, nil
	case asm.FnGetSmpProcessorId:
		return uint64(x.CPU), nil
	case asm.FnGetNumaNodeId:
		return uint64(x.Node), nil
	case asm.FnGetPrandomU32:
		return uint64(rand.Uint32()), nil
	case asm.FnGetFuncIp:
		if x.ctx == nil {
			return 0, x.fail(ErrAccess, "there is no context")
		}
		return x.ctx[PtRegsIP/8], nil
	case asm.FnGetAttachCookie:
		return 0, nil // see Verified.WithCookie
	case asm.FnMapLookupElem, asm.FnMapUpdateElem, asm.FnMapDeleteElem:
		return x.mapHelper(h)
	case asm.FnMapLookupPercpuElem:
		return x.slotValue()
	case HelperMapCell:
		return x.mapCell()
	case HelperMapNext, HelperMapRead:
		return x.entriesHelper(h)

	case HelperStackID:
		e := int64(errInval)
		return uint64(e), nil // EINVAL: the interpreter has no stack of the target's
	case asm.FnGetStack, asm.FnGetStackid:
		return x.walkStack(h)
	case HelperBitLength:
		return uint64(bits.Len64(x.r[asm.R1])), nil
	case HelperRingbufOutput:
		if x.r[asm.R1] == mapRef(ringNumber) {
			return x.ringOutput()
		}
		return x.output(asm.R1, asm.R2, asm.R3)
	case asm.FnPerfEventOutput:
		return x.output(asm.R2, asm.R4, asm.R5)
	case asm.FnTracePrintk, asm.FnTraceVprintk:
		return x.trace(h.ID == asm.FnTraceVprintk)
	case asm.FnRingbufReserve:
		return x.reserve()
	case asm.FnRingbufQuery:
		return x.ringQuery()
	case asm.FnRingbufSubmit, asm.FnRingbufDiscard:
		return 0, x.submit(h.ID == asm.FnRingbufSubmit)
	}
	panic("BUG: bpf: a helper of the table is not implemented: " + h.Name)
}

// mapArg is the map that a register refers to.
func (x *run) mapArg(r asm.Register) (int, error) {
	n := (x.r[r] - mapRefAddr) >> 8
	if x.r[r] != mapRef(int64(n)) || n >= uint64(len(x.code.Maps)) {
		return 0, x.fail(ErrAccess, "r%d is not a map", r)
	}
	return int(n), nil
}

// mapCell is HelperMapCell: the address of the slot's cell, or 0.
func (x *run) mapCell() (uint64, error) {
	m, err := x.mapArg(asm.R1)
	if err != nil {
		return 0, err
	}
	ml := &x.Layout.Maps[m]
	key, err := x.bytes(x.r[asm.R2], ml.KeySize, false)
	if err != nil {
		return 0, err
	}
	pos, ok := x.find(ml, key, true)
	if !ok {
		return 0, nil
	}
	return x.valueAddr(m, pos), nil
}

// mapHelper is map_lookup_elem, map_update_elem or map_delete_elem.
func (x *run) mapHelper(h *Helper) (uint64, error) {
	m, err := x.mapArg(asm.R1)
	if err != nil {
		return 0, err
	}
	ml := &x.Layout.Maps[m]
	if !h.TakesMap(ml.Kind) {
		return 0, x.fail(ErrAccess, "%s does not work on map %s", h.Name, ml.Name)
	}
	key, err := x.bytes(x.r[asm.R2], ml.KeySize, false)
	if err != nil {
		return 0, err
	}
	switch h.ID {
	case asm.FnMapLookupElem:
		pos, ok := x.lookup(ml, key)
		if !ok {
			return 0, nil
		}
		return x.valueAddr(m, pos), nil
	case asm.FnMapDeleteElem:
		return uint64(x.remove(ml, key)), nil
	}
	value, err := x.bytes(x.r[asm.R3], ml.ValueSize, false)
	if err != nil {
		return 0, err
	}
	return uint64(x.update(ml, key, value, x.r[asm.R4])), nil
}

// probeRead is probe_read_user or probe_read_user_str.
func (x *run) probeRead(h *Helper) (uint64, error) {
	dst, err := x.bytes(x.r[asm.R1], int(uint32(x.r[asm.R2])), true)
	if err != nil {
		return 0, err
	}
	buf := make([]byte, len(dst))
	fault := int64(errFault)
	if h.ID == asm.FnProbeRead || h.ID == asm.FnProbeReadUser {
		if len(dst) > 0 && (x.ReadUser == nil || !x.ReadUser(x.r[asm.R3], buf)) {
			clear(dst)
			return uint64(fault), nil
		}
		copy(dst, buf)
		return 0, nil
	}
	for i := range buf {
		if x.ReadUser == nil || !x.ReadUser(x.r[asm.R3]+uint64(i), buf[i:i+1]) {
			clear(dst)
			return uint64(fault), nil
		}
		if i == len(buf)-1 {
			buf[i] = 0
		}
		if dst[i] = buf[i]; buf[i] == 0 {
			clear(dst[i:])
			return uint64(i + 1), nil
		}
	}
	return 0, nil
}

const errFault = -14

// strncmp is strncmp.
func (x *run) strncmp() (uint64, error) {
	a, err := x.bytes(x.r[asm.R1], int(uint32(x.r[asm.R2])), false)
	if err != nil {
		return 0, err
	}
	for i, c := range a {
		b, err := x.bytes(x.r[asm.R3]+uint64(i), 1, false)
		if err != nil {
			return 0, err
		}
		switch {
		case c < b[0]:
			return ^uint64(0), nil
		case c > b[0]:
			return 1, nil
		case c == 0:
			return 0, nil
		}
	}
	return 0, nil
}

// comm is get_current_comm.
func (x *run) comm() (uint64, error) {
	dst, err := x.bytes(x.r[asm.R1], int(x.r[asm.R2]), true)
	if err != nil {
		return 0, err
	}
	clear(dst)
	copy(dst[:len(dst)-1], x.Comm)
	return 0, nil
}

func (x *run) ringOutput() (uint64, error) {
	if x.r[asm.R1] != mapRef(ringNumber) {
		return 0, x.fail(ErrAccess, "r1 is not the ring")
	}
	size := x.r[asm.R3]
	if size > MaxEvent {
		return 0, x.fail(ErrAccess, "an event of %d bytes", size)
	}
	data, err := x.bytes(x.r[asm.R2], int(size), false)
	if err != nil {
		return 0, err
	}
	if x.Event != nil && x.Event(data) {
		return 0, nil
	}
	addWord(x.Arena, x.slotBase()+abi.SlotDrops, 1)
	e := int64(errAgain)
	return uint64(e), nil
}

func (m *Machine) slotBase() uint64 { return m.Layout.Slots + uint64(m.Slot)<<m.Layout.StrideShift }
