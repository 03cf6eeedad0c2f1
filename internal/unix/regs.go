package unix

// Regs are the general registers of a thread of an x86-64 process, in the order
// of struct user_regs_struct (arch/x86/include/asm/user_64.h).
type Regs struct {
	R15, R14, R13, R12 uint64
	RBP, RBX           uint64
	R11, R10, R9, R8   uint64
	RAX, RCX, RDX      uint64
	RSI, RDI           uint64
	OrigRAX            uint64 // number of the system call the thread is in, or NoSyscall
	RIP, CS            uint64
	EFlags             uint64
	RSP, SS            uint64
	FSBase, GSBase     uint64
	DS, ES, FS, GS     uint64
}

// NoSyscall is OrigRAX of a thread that is not in a system call.
const NoSyscall = ^uint64(0)
