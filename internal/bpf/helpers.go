package bpf

import (
	"fmt"

	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"trapless/internal/abi"
)

// Helpers that exist in trapless only. The others have the kernel's numbers
// (include/uapi/linux/bpf.h), which are below 0x10000.
const (
	// HelperExit () asks the tracer to end the session, and ends the run. It
	// does not return. Only the main function may call it.
	HelperExit asm.BuiltinFunc = 0x10000
	// HelperMapCell (map, key on the stack) returns the running thread's own
	// cell for the key, or 0 when the map is full or the index out of range. A
	// cell that was never used is zero.
	HelperMapCell asm.BuiltinFunc = 0x10001
	// HelperBitLength (number) returns how many bits the number has: 0 for 0,
	// else one more than the position of its highest bit that is set.
	HelperBitLength asm.BuiltinFunc = 0x10002
	// HelperTailCount (context) counts a tail call of the run, and returns 1, or 0 if
	// there were MaxTailCalls. HelperContext () returns the context that the program
	// began with. Tail calls are made of them.
	HelperTailCount asm.BuiltinFunc = 0x10004
	HelperContext   asm.BuiltinFunc = 0x10005
	// HelperMapNext (map, state, key, value) copies an entry of a map, with its value
	// over all threads, and returns the state to pass for the next one, or 0 when
	// there is none left. The first state is 0; the entries are those of that
	// moment. It exists in programs of the tracer only.
	HelperMapNext asm.BuiltinFunc = 0x10010
	// HelperMapRead (map, key, value) copies the value of a key over all threads, and
	// returns 1; without an entry it is zeros and 0. It exists in programs of the
	// tracer only.
	HelperMapRead asm.BuiltinFunc = 0x10011

	// HelperStackID (map, stack pointer, frame pointer, address) walks the running
	// thread's stack from registers that it had, by the arena's table of unwind
	// rules, and returns the stack's number in a map of stacks, or a negative error
	// number: -EEXIST where other stacks have taken the places that it may have.
	HelperStackID asm.BuiltinFunc = 0x10003
)

// Helpers of the kernel that the engine treats in a way of its own.
const (
	// HelperGetCurrentPidTgid returns the process in the upper 32 bits and the
	// thread in the lower ones.
	HelperGetCurrentPidTgid asm.BuiltinFunc = asm.FnGetCurrentPidTgid
	// HelperRingbufOutput (ring, data, size, flags) returns 0, or a negative
	// error number when the event was dropped.
	HelperRingbufOutput asm.BuiltinFunc = asm.FnRingbufOutput
)

// What ringbuf_query tells of the running thread's ring, by its flags
// (include/uapi/linux/bpf.h). For other flags it returns 0.
const (
	RingAvailable = iota // bytes that the tracer has not read yet
	RingSize
	RingConsumed // bytes ever read
	RingProduced // bytes ever written
)

// MaxEvent is the largest event that HelperRingbufOutput takes, in bytes.
const MaxEvent = abi.MaxRecord - abi.RecPayload

// MaxTailCalls is how many tail calls a run may make (include/linux/bpf.h,
// MAX_TAIL_CALL_CNT).
const MaxTailCalls = 33

// ArgType is what a helper demands of an argument.
type ArgType uint8

// The types of arguments. A size belongs to the memory in the register before.
const (
	ArgNone        ArgType = iota // there is no argument
	ArgAnything                   // a number, or a pointer whose address is used as one
	ArgContext                    // the pointer to the context that the program began with
	ArgMap                        // a reference to a map
	ArgKey                        // readable memory of the map's key size
	ArgValue                      // readable memory of the map's value size
	ArgKeyWrite                   // memory of the map's key size, which the helper writes
	ArgValueWrite                 // memory of the map's value size, which the helper writes
	ArgRead                       // readable memory of the size in the next argument
	ArgReadOrNull                 // the same, or 0 with the size 0
	ArgWrite                      // memory of the size in the next argument, which the helper writes
	ArgWriteOrNull                // the same, or 0 with the size 0
	ArgSize                       // a size of at least 1
	ArgSizeOrZero                 // a size
	ArgConstSize                  // a size that is the same on every path, at least 1
	ArgString                     // a string that ends with a zero byte, in a read-only map
	ArgFunc                       // a reference to a function of the program
	ArgStackOrNull                // a pointer to the stack, or 0
	ArgRecord                     // a record that ringbuf_reserve returned; it is gone afterwards
	ArgOptional                   // like ArgAnything, but the register need not have been written
)

// RetType is what a helper leaves in r0.
type RetType uint8

// The types of results.
const (
	RetScalar       RetType = iota // a number
	RetVoid                        // nothing that may be read
	RetNever                       // the helper does not return
	RetValueOrNull                 // a pointer to a value of the map in r1, or 0
	RetCellOrNull                  // a pointer to the thread's own value of the map in r1, or 0
	RetRecordOrNull                // a pointer to a record of the size in r2, or 0
	RetContext                     // the pointer to the context
)

// Helper describes a helper function.
type Helper struct {
	ID   asm.BuiltinFunc
	Name string // as in include/uapi/linux/bpf.h, without bpf_
	Args [5]ArgType
	Ret  RetType

	// Missing is why the engine cannot run it, empty when it can. A program
	// that calls such a helper is refused by the helper's name.
	Missing string
}

// NumArgs is the number of arguments.
func (h *Helper) NumArgs() int {
	n := 0
	for n < len(h.Args) && h.Args[n] != ArgNone {
		n++
	}
	return n
}

// TakesMap reports whether the helper works on maps of a kind.
func (h *Helper) TakesMap(k abi.MapKind) bool {
	switch h.ID {
	case HelperMapCell, asm.FnMapLookupPercpuElem:
		return k == abi.PerSlotArray || k == abi.PerSlotHash
	case asm.FnRingbufOutput, asm.FnRingbufReserve, asm.FnRingbufQuery:
		return k == abi.RingBuf
	case asm.FnPerfEventOutput:
		return k == abi.PerfEventArray
	case asm.FnGetStackid, HelperStackID:
		return k == abi.StackTrace
	case asm.FnMapDeleteElem:
		return k == abi.Hash || k == abi.LRUHash || k == abi.PerThread
	case asm.FnTailCall:
		return false
	case asm.FnForEachMapElem:
		return k == abi.Array || k == abi.PerSlotArray || k == abi.PerSlotHash || k == abi.Hash || k == abi.LRUHash
	}
	return k != abi.RingBuf && k != abi.PerfEventArray && k != abi.StackTrace
}

// LookupHelper finds a helper by its number. It returns a reason when there is
// none, or none that the engine has.
func LookupHelper(id asm.BuiltinFunc) (*Helper, string) {
	h := helperByID[id]
	switch {
	case id == btf.COREBadRelocationSentinel:
		return nil, "a CO-RE relocation could not be resolved here, for the program runs in a process: of the kernel's types there is struct pt_regs alone"
	case h == nil:
		return nil, fmt.Sprintf("helper %d (%v) is not supported", int64(id), id)
	case h.Missing != "":
		return h, fmt.Sprintf("helper %d (%s) is not supported: %s", int64(id), h.Name, h.Missing)
	}
	return h, ""
}

var helperByID = func() map[asm.BuiltinFunc]*Helper {
	m := map[asm.BuiltinFunc]*Helper{}
	for i := range helpers {
		m[helpers[i].ID] = &helpers[i]
	}
	return m
}()

// Reasons why a helper is missing.
const (
	noKernel  = "a program runs in the process, where no kernel memory can be read"
	noWriting = "a probe must not change the process"
)

type args = [5]ArgType

// helpers are the helpers that programs of user-space probes call.
var helpers = []Helper{
	{asm.FnMapLookupElem, "map_lookup_elem", args{ArgMap, ArgKey}, RetValueOrNull, ""},
	{asm.FnMapUpdateElem, "map_update_elem", args{ArgMap, ArgKey, ArgValue, ArgAnything}, RetScalar, ""},
	{asm.FnMapDeleteElem, "map_delete_elem", args{ArgMap, ArgKey}, RetScalar, ""},
	{asm.FnMapLookupPercpuElem, "map_lookup_percpu_elem", args{ArgMap, ArgKey, ArgAnything}, RetValueOrNull, ""},
	{asm.FnForEachMapElem, "for_each_map_elem", args{ArgMap, ArgFunc, ArgStackOrNull, ArgAnything}, RetScalar, ""},
	{asm.FnProbeRead, "probe_read", args{ArgWrite, ArgSizeOrZero, ArgAnything}, RetScalar, ""},
	{asm.FnProbeReadStr, "probe_read_str", args{ArgWrite, ArgSizeOrZero, ArgAnything}, RetScalar, ""},
	{asm.FnProbeReadUser, "probe_read_user", args{ArgWrite, ArgSizeOrZero, ArgAnything}, RetScalar, ""},
	{asm.FnProbeReadUserStr, "probe_read_user_str", args{ArgWrite, ArgSizeOrZero, ArgAnything}, RetScalar, ""},
	{asm.FnProbeReadKernel, "probe_read_kernel", args{ArgWrite, ArgSizeOrZero, ArgAnything}, RetScalar, noKernel},
	{asm.FnProbeReadKernelStr, "probe_read_kernel_str", args{ArgWrite, ArgSizeOrZero, ArgAnything}, RetScalar, noKernel},
	{asm.FnProbeWriteUser, "probe_write_user", args{ArgAnything, ArgRead, ArgSize}, RetScalar, noWriting},
	{asm.FnKtimeGetNs, "ktime_get_ns", args{}, RetScalar, ""},
	{asm.FnKtimeGetBootNs, "ktime_get_boot_ns", args{}, RetScalar, ""},
	{asm.FnKtimeGetCoarseNs, "ktime_get_coarse_ns", args{}, RetScalar, ""},
	{HelperGetCurrentPidTgid, "get_current_pid_tgid", args{}, RetScalar, ""},
	{asm.FnGetCurrentUidGid, "get_current_uid_gid", args{}, RetScalar, ""},
	{asm.FnGetCurrentComm, "get_current_comm", args{ArgWrite, ArgSize}, RetScalar, ""},
	{asm.FnGetNumaNodeId, "get_numa_node_id", args{}, RetScalar, ""},
	{asm.FnGetSmpProcessorId, "get_smp_processor_id", args{}, RetScalar, ""},
	{asm.FnGetPrandomU32, "get_prandom_u32", args{}, RetScalar, ""},
	{HelperRingbufOutput, "ringbuf_output", args{ArgMap, ArgRead, ArgSizeOrZero, ArgAnything}, RetScalar, ""},
	{asm.FnRingbufReserve, "ringbuf_reserve", args{ArgMap, ArgConstSize, ArgAnything}, RetRecordOrNull, ""},
	{asm.FnRingbufSubmit, "ringbuf_submit", args{ArgRecord, ArgAnything}, RetVoid, ""},
	{asm.FnRingbufDiscard, "ringbuf_discard", args{ArgRecord, ArgAnything}, RetVoid, ""},
	{asm.FnRingbufQuery, "ringbuf_query", args{ArgMap, ArgAnything}, RetScalar, ""},
	{asm.FnPerfEventOutput, "perf_event_output", args{ArgContext, ArgMap, ArgAnything, ArgRead, ArgSizeOrZero}, RetScalar, ""},
	{asm.FnGetStack, "get_stack", args{ArgContext, ArgWrite, ArgSizeOrZero, ArgAnything}, RetScalar, ""},
	{asm.FnGetStackid, "get_stackid", args{ArgContext, ArgMap, ArgAnything}, RetScalar, ""},
	{asm.FnGetFuncIp, "get_func_ip", args{ArgContext}, RetScalar, ""},
	{asm.FnGetAttachCookie, "get_attach_cookie", args{ArgContext}, RetScalar, ""},
	{asm.FnTracePrintk, "trace_printk", args{ArgRead, ArgSize, ArgOptional, ArgOptional, ArgOptional}, RetScalar, ""},
	{asm.FnTraceVprintk, "trace_vprintk", args{ArgRead, ArgSize, ArgReadOrNull, ArgSizeOrZero}, RetScalar, ""},
	{asm.FnSnprintf, "snprintf", args{ArgWriteOrNull, ArgSizeOrZero, ArgString, ArgReadOrNull, ArgSizeOrZero}, RetScalar, ""},
	{asm.FnStrncmp, "strncmp", args{ArgRead, ArgSize, ArgString}, RetScalar, ""},
	{asm.FnLoop, "loop", args{ArgAnything, ArgFunc, ArgStackOrNull, ArgAnything}, RetScalar, ""},
	{asm.FnTailCall, "tail_call", args{ArgContext, ArgMap, ArgAnything}, RetScalar, "the programs that tail calls lead to are put in when an object is loaded; this one refers to no program array"},
	{HelperExit, "exit", args{}, RetNever, ""},
	{HelperTailCount, "tail_count", args{ArgContext}, RetScalar, ""},
	{HelperContext, "context", args{}, RetContext, ""},
	{HelperBitLength, "bit_length", args{ArgAnything}, RetScalar, ""},
	{HelperMapNext, "map_next", args{ArgMap, ArgAnything, ArgKeyWrite, ArgValueWrite}, RetScalar, ""},
	{HelperMapRead, "map_read", args{ArgMap, ArgKey, ArgValueWrite}, RetScalar, ""},

	{HelperStackID, "stack_id", args{ArgMap, ArgAnything, ArgAnything, ArgAnything}, RetScalar, ""},
	{HelperMapCell, "map_cell", args{ArgMap, ArgKey}, RetCellOrNull, ""},
}
