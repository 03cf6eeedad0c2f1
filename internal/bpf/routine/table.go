package routine

import (
	"github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
	"trapless/internal/bpf"
)

// What these routines do to a table is told with abi.PhaseEmpty; bpf.Machine does
// the same in Go, and in the same order.

// Swap16 (address, the two words that are there, the two that replace them) replaces
// 16 bytes at once, and returns whether it did. It exists in routines only.
const Swap16 asm.BuiltinFunc = 0x20001

// Registers of a search in a table. r0, r1, r2 and r4 are used for anything;
// position, tries, word and dir are those of a directory.
const (
	state = asm.R4 // of the position that is looked at
	entry = asm.R8 // the address of its state
	other = asm.R9 // of a deleted entry that has the key; of what is helped to become the entry
)

// Places on the stack during an update, below those of a directory's.
const (
	keptKey    = -32
	keptRounds = -40
	keptDead   = -48 // state of the deleted entry
	keptMine   = -56 // address of the state of our own position
	keptState  = -64 // that state
	keptHelped = -72 // state of what is helped
	keptPassed = -80 // whether that was passed on the key's way
	keptBudget = -88
)

func (c *code) wordOff() int16 { return int16(8 + c.ml.Stride()) }

// number leaves the number of a state, and no phase.
func (c *code) onlyNumber(r asm.Register) { c.add(asm.And.Imm(r, abi.StateNumber)) }

// home makes position the first on the key's way, and sets tries.
func (c *code) home() {
	ml := c.ml
	c.number(position, abi.HashMul)
	c.add(asm.Mov.Reg(asm.R0, word))
	if ml.KeyWords() == 1 {
		c.add(asm.Mul.Reg(position, asm.R0))
	} else {
		c.add(asm.Mov.Reg(position, asm.R0)) // the word is the hash
	}
	c.add(asm.RSh.Imm(position, int32(64-ml.DirBits)), asm.Mov.Imm(tries, int32(min(abi.ProbeLimit, 1<<ml.DirBits))))
}

// look makes entry the position's, and loads its state.
func (c *code) look() {
	c.add(asm.Mov.Reg(entry, position))
	if d := c.ml.Entry(); d&(d-1) == 0 {
		c.add(asm.LSh.Imm(entry, int32(log2(d))))
	} else {
		c.add(asm.Mul.Imm(entry, int32(d)))
	}
	c.add(asm.Add.Reg(entry, dir), asm.LoadMem(state, entry, 0, asm.DWord))
}

func log2(n int) (k int) {
	for ; n > 1; n >>= 1 {
		k++
	}
	return k
}

// step goes to the next position while there are tries.
func (c *code) step(loop, over string) {
	c.add(asm.Add.Imm(position, 1), asm.And.Imm(position, int32(1)<<c.ml.DirBits-1), asm.Sub.Imm(tries, 1),
		asm.JNE.Imm(tries, 0, loop), asm.Ja.Label(over))
}

// begin takes the key in r1.
func (c *code) begin() {
	c.address(dir, c.ml.State(0))
	if c.ml.KeyWords() == 1 {
		c.add(asm.Mov.Reg(word, asm.R1))
		return
	}
	c.add(asm.StoreMem(asm.R10, keptKey, asm.R1, asm.DWord), asm.Mov.Reg(key, asm.R1))
	c.hashAll(position)
	c.add(asm.Mov.Reg(word, position))
}

// hashAll computes abi.HashKey of the key that register key points to. r0, r1 and
// r2 are used.
func (c *code) hashAll(d asm.Register) {
	c.add(asm.Mov.Imm(d, 0))
	c.number(asm.R2, abi.HashMul)
	for i := range c.ml.KeyWords() {
		if i > 0 { // rotate by 32
			c.add(asm.Mov.Reg(asm.R0, d), asm.LSh.Imm(asm.R0, 32), asm.RSh.Imm(d, 32), asm.Or.Reg(d, asm.R0))
		}
		c.keyWord(asm.R0, key, i)
		c.add(asm.Xor.Reg(d, asm.R0), asm.Mul.Reg(d, asm.R2))
	}
}

// holds goes to next unless the position has the key. r0, r1 and r2 are used.
func (c *code) holds(next string) {
	c.add(asm.LoadMem(asm.R0, entry, c.wordOff(), asm.DWord), asm.JNE.Reg(asm.R0, word, next))
	if c.ml.KeyWords() == 1 {
		return
	}
	c.add(asm.LoadMem(asm.R2, asm.R10, keptKey, asm.DWord))
	for i := range c.ml.KeyWords() {
		c.keyWord(asm.R0, asm.R2, i)
		c.add(asm.LoadMem(asm.R1, entry, c.wordOff()+8+int16(8*i), asm.DWord), asm.JNE.Reg(asm.R0, asm.R1, next))
	}
	c.add(asm.LoadMem(asm.R0, entry, 0, asm.DWord), asm.Xor.Reg(asm.R0, state))
	c.onlyNumber(asm.R0)
	c.add(asm.JNE.Imm(asm.R0, 0, next))
}

// search goes to "present" with the key's entry, or to "absent". With dead set it
// notes a deleted entry.
func (c *code) search(dead bool) {
	c.home()
	if dead {
		c.add(asm.Mov.Imm(other, 0))
	}
	c.bind("probe")
	c.look()
	c.add(asm.JEq.Imm(state, abi.PhaseEmpty, "absent"))
	c.holds("next")
	c.add(asm.Mov.Reg(asm.R0, state), asm.And.Imm(asm.R0, abi.StatePhase), asm.JEq.Imm(asm.R0, abi.PhasePresent, "present"))
	if dead {
		c.add(asm.JNE.Imm(asm.R0, abi.PhaseDead, "next"), asm.Mov.Reg(other, entry), asm.StoreMem(asm.R10, keptDead, state, asm.DWord))
	}
	c.bind("next")
	c.step("probe", "absent")
}

// use notes that the entry is used.
func (c *code) use() {
	if c.ml.Kind != abi.LRUHash {
		return
	}
	done := c.fresh("used")
	c.add(asm.LoadMem(asm.R0, entry, 1, asm.Byte), asm.JNE.Imm(asm.R0, 0, done),
		asm.Mov.Imm(asm.R0, 1), asm.StoreMem(entry, 1, asm.R0, asm.Byte))
	c.bind(done)
}

func (c *code) tableLookup() *bpf.Program {
	c.begin()
	c.search(false)
	c.bind("present")
	c.use()
	c.add(asm.Mov.Reg(asm.R0, entry), asm.Add.Imm(asm.R0, 8), asm.Return())
	c.bind("absent")
	c.ret(0)
	return c.program("lookup")
}

// Delete is map_delete_elem of a table: (key) 0 or an error.
func Delete(ml *abi.MapLayout, arena abi.Addr) *bpf.Program {
	c := &code{ml: ml, arena: arena}
	c.begin()
	c.search(false)
	c.bind("present")
	c.add(asm.Mov.Imm(tries, abi.ProbeLimit))
	c.bind("delete")
	c.add(asm.Mov.Reg(asm.R1, state))
	c.onlyNumber(asm.R1)
	c.add(asm.Or.Imm(asm.R1, abi.PhaseDead))
	c.swapState(entry, state, asm.R1, "deleted")
	// Another one deletes it, or it was used.
	c.add(asm.Mov.Reg(asm.R1, asm.R0), asm.And.Imm(asm.R1, abi.StatePhase), asm.JNE.Imm(asm.R1, abi.PhasePresent, "absent"),
		asm.Mov.Reg(asm.R1, asm.R0), asm.Xor.Reg(asm.R1, state))
	c.onlyNumber(asm.R1)
	c.add(asm.JNE.Imm(asm.R1, 0, "absent"), asm.Mov.Reg(state, asm.R0), asm.Sub.Imm(tries, 1), asm.JNE.Imm(tries, 0, "delete"))
	c.bind("absent")
	c.ret(errNoEnt)
	c.bind("deleted")
	c.ret(0)
	return c.program("delete")
}

// swapState replaces a state that is old by now, and goes to done if it did. Else r0
// is what is there.
func (c *code) swapState(at, old, now asm.Register, done string) {
	c.add(asm.Mov.Reg(asm.R0, old), asm.CmpXchg.Mem(at, now, asm.DWord, 0), asm.JEq.Reg(asm.R0, old, done))
}

// change makes r1 the state with another phase and no mark.
func (c *code) change(old asm.Register, phase int32) {
	c.add(asm.Mov.Reg(asm.R1, old))
	c.onlyNumber(asm.R1)
	c.add(asm.Or.Imm(asm.R1, phase))
}

func (c *code) tableUpdate() *bpf.Program {
	c.add(asm.JGT.Imm(asm.R3, exist, "invalid"))
	c.add(asm.StoreMem(asm.R10, keptValue, asm.R2, asm.DWord), asm.StoreMem(asm.R10, keptFlags, asm.R3, asm.DWord))
	c.store(keptRounds, bpf.TableRounds)
	c.begin()
	c.bind("again")
	c.search(true)

	c.bind("present")
	c.add(asm.LoadMem(asm.R0, asm.R10, keptFlags, asm.DWord), asm.JEq.Imm(asm.R0, noExist, "exists"))
	c.putValue()
	c.use()
	c.ret(0)

	c.bind("absent")
	c.add(asm.LoadMem(asm.R0, asm.R10, keptFlags, asm.DWord), asm.JEq.Imm(asm.R0, exist, "missing"),
		asm.JEq.Imm(other, 0, "reserve"), asm.LoadMem(state, asm.R10, keptDead, asm.DWord))
	c.revive()
	c.reserve()
	c.take()
	c.bind("own")
	c.enterKey()
	c.assist()
	c.decide()

	c.bind("retry")
	c.add(asm.LoadMem(asm.R0, asm.R10, keptRounds, asm.DWord), asm.Sub.Imm(asm.R0, 1), asm.StoreMem(asm.R10, keptRounds, asm.R0, asm.DWord),
		asm.JNE.Imm(asm.R0, 0, "again"), asm.Ja.Label("dropped"))
	c.bind("full")
	c.leave()
	c.bind("dropped")
	c.address(asm.R0, abi.HdrDrops)
	c.add(asm.Mov.Imm(asm.R1, 1), asm.AddAtomic.Mem(asm.R0, asm.R1, asm.DWord, 0))
	c.ret(errTooBig)
	c.bind("exists")
	c.ret(errExist)
	c.bind("missing")
	c.ret(errNoEnt)
	c.bind("invalid")
	c.ret(errInval)
	return c.program("update")
}

// store stores a number on the stack.
func (c *code) store(off int16, v int64) {
	c.add(asm.Instruction{OpCode: asm.StoreImmOp(asm.DWord), Dst: asm.R10, Offset: off, Constant: v})
}

// putValue copies the value to the entry. r0 to r2 and r4 are used.
func (c *code) putValue() {
	c.add(asm.Mov.Reg(asm.R0, entry), asm.Add.Imm(asm.R0, 8), asm.LoadMem(asm.R1, asm.R10, keptValue, asm.DWord))
	c.copy(asm.R0, asm.R1, c.ml.ValueSize)
}

// revive gives a deleted entry, whose state is known, a new value: a short one
// together with its state, a long one as its owner.
func (c *code) revive() {
	ml := c.ml
	if ml.Stride() > 8 {
		c.add(asm.Mov.Reg(entry, other))
		c.busy("own")
		c.add(asm.Ja.Label("retry"))
		return
	}
	c.add(asm.LoadMem(asm.R1, asm.R10, keptValue, asm.DWord))
	c.loadValue(asm.R5, asm.R1)
	c.add(asm.LoadMem(asm.R3, other, 8, asm.DWord), asm.Mov.Reg(asm.R2, state))
	c.onlyNumber(asm.R4)
	c.add(asm.Add.Imm(asm.R4, abi.StateNext), asm.Or.Imm(asm.R4, abi.PhasePresent),
		asm.Mov.Reg(asm.R1, other), Swap16.Call(), asm.JEq.Imm(asm.R0, 0, "retry"))
	c.ret(0)
}

// loadValue loads a value of up to 8 bytes. r0 is used.
func (c *code) loadValue(d, from asm.Register) {
	c.add(asm.Mov.Imm(d, 0))
	off := 0
	for _, w := range []asm.Size{asm.DWord, asm.Word, asm.Half, asm.Byte} {
		if n := w.Sizeof(); off+n <= c.ml.ValueSize {
			c.add(asm.LoadMem(asm.R0, from, int16(off), w))
			if off > 0 {
				c.add(asm.LSh.Imm(asm.R0, int32(8*off)))
			}
			c.add(asm.Or.Reg(d, asm.R0))
			off += n
		}
	}
}

// busy makes the position in entry, whose state was read, ours.
func (c *code) busy(done string) {
	c.add(asm.Mov.Reg(asm.R1, state))
	c.onlyNumber(asm.R1)
	c.add(asm.Add.Imm(asm.R1, abi.StateNext), asm.Or.Imm(asm.R1, abi.PhaseBusy))
	c.add(asm.StoreMem(asm.R10, keptState, asm.R1, asm.DWord))
	c.swapState(entry, state, asm.R1, done)
}

// reserve counts one entry more, or makes another one give up its place.
func (c *code) reserve() {
	ml := c.ml
	c.bind("reserve")
	c.address(asm.R2, ml.Used)
	c.add(asm.Mov.Imm(asm.R1, 1), asm.FetchAdd.Mem(asm.R2, asm.R1, asm.DWord, 0), asm.JLT.Imm(asm.R1, int32(ml.MaxEntries), "take"))
	c.leave()
	c.add(asm.Mov.Imm(tries, bpf.EvictSteps))
	c.bind("evict")
	c.address(asm.R2, ml.Hand)
	c.add(asm.Mov.Imm(position, 1), asm.FetchAdd.Mem(asm.R2, position, asm.DWord, 0), asm.And.Imm(position, int32(1)<<ml.DirBits-1))
	c.look()
	c.add(asm.Mov.Reg(asm.R0, state), asm.And.Imm(asm.R0, abi.StatePhase), asm.JEq.Imm(asm.R0, abi.PhaseDead, "give_up"))
	if ml.Kind == abi.LRUHash {
		c.add(asm.JNE.Imm(asm.R0, abi.PhasePresent, "stays"), asm.JLE.Imm(tries, bpf.EvictSteps-bpf.EvictPolite, "give_up"),
			asm.Mov.Reg(asm.R0, state), asm.And.Imm(asm.R0, abi.StateUsed), asm.JEq.Imm(asm.R0, 0, "give_up"),
			asm.Mov.Imm(asm.R0, 0), asm.StoreMem(entry, 1, asm.R0, asm.Byte))
	}
	c.add(asm.Ja.Label("stays"))
	c.bind("give_up")
	c.change(state, abi.PhaseGone)
	c.swapState(entry, state, asm.R1, "take")
	c.bind("stays")
	c.add(asm.Sub.Imm(tries, 1), asm.JNE.Imm(tries, 0, "evict"), asm.Ja.Label("dropped"))
}

// take finds a position for a key that has none.
func (c *code) take() {
	c.bind("take")
	c.home()
	c.bind("free")
	c.look()
	c.add(asm.JEq.Imm(state, abi.PhaseEmpty, "seize"), asm.Mov.Reg(asm.R0, state), asm.And.Imm(asm.R0, abi.StatePhase),
		asm.JNE.Imm(asm.R0, abi.PhaseGone, "taken"))
	c.bind("seize")
	c.busy("own")
	c.bind("taken")
	c.step("free", "full")
}

// enterKey writes key and value to our position, and shows it.
func (c *code) enterKey() {
	c.add(asm.StoreMem(asm.R10, keptMine, entry, asm.DWord), asm.StoreMem(entry, c.wordOff(), word, asm.DWord))
	if c.ml.KeyWords() > 1 {
		c.add(asm.LoadMem(asm.R2, asm.R10, keptKey, asm.DWord))
		for i := range c.ml.KeyWords() {
			c.keyWord(asm.R0, asm.R2, i)
			c.add(asm.StoreMem(entry, c.wordOff()+8+int16(8*i), asm.R0, asm.DWord))
		}
	}
	c.putValue()
	c.add(asm.LoadMem(asm.R0, asm.R10, keptState, asm.DWord))
	c.change(asm.R0, abi.PhaseEntering)
	c.add(asm.StoreMem(asm.R10, keptState, asm.R1, asm.DWord), asm.StoreMem(asm.R10, keptHelped, asm.R1, asm.DWord),
		asm.Mov.Reg(other, entry), asm.Xchg.Mem(entry, asm.R1, asm.DWord, 0))
}

// assist makes what other points to the key's entry, unless there is another one;
// then it helps that one.
func (c *code) assist() {
	c.bind("assist")
	c.home()
	c.store(keptPassed, 0)
	c.store(keptBudget, 4*abi.ProbeLimit)
	c.bind("check")
	c.look()
	c.add(asm.JEq.Reg(entry, other, "pass"))
	c.bind("recheck")
	c.add(asm.LoadMem(state, entry, 0, asm.DWord), asm.JEq.Imm(state, abi.PhaseEmpty, "confirm"),
		asm.LoadMem(asm.R0, asm.R10, keptBudget, asm.DWord), asm.Sub.Imm(asm.R0, 1), asm.StoreMem(asm.R10, keptBudget, asm.R0, asm.DWord),
		asm.JEq.Imm(asm.R0, 0, "refuse"))
	c.holds("checked")
	c.add(asm.Mov.Reg(asm.R0, state), asm.And.Imm(asm.R0, abi.StatePhase), asm.JEq.Imm(asm.R0, abi.PhaseDead, "dead"),
		asm.LoadMem(asm.R1, entry, 0, asm.DWord), asm.JNE.Reg(asm.R1, state, "recheck"),
		asm.JEq.Imm(asm.R0, abi.PhasePresent, "refuse"), asm.JNE.Imm(asm.R0, abi.PhaseEntering, "checked"),
		asm.LoadMem(asm.R0, asm.R10, keptPassed, asm.DWord), asm.JEq.Imm(asm.R0, 0, "help"),
		asm.LoadMem(asm.R0, asm.R10, keptHelped, asm.DWord), asm.LoadMem(asm.R1, other, 0, asm.DWord), asm.JNE.Reg(asm.R0, asm.R1, "checked"))
	c.change(state, abi.PhaseRefused)
	c.swapState(entry, state, asm.R1, "checked")
	c.add(asm.Ja.Label("checked"))

	c.bind("dead")
	c.change(state, abi.PhaseGone)
	c.swapState(entry, state, asm.R1, "gone")
	c.add(asm.Ja.Label("recheck"))
	c.bind("gone")
	c.leave()
	c.add(asm.Ja.Label("checked"))
	c.bind("pass")
	c.store(keptPassed, 1)
	c.bind("checked")
	c.step("check", "confirm")

	c.bind("help")
	c.settle(abi.PhaseRefused)
	c.add(asm.Mov.Reg(other, entry), asm.StoreMem(asm.R10, keptHelped, state, asm.DWord), asm.Ja.Label("assist"))
	c.bind("refuse")
	c.settle(abi.PhaseRefused)
	c.add(asm.Ja.Label("settled"))
	c.bind("confirm")
	c.settle(abi.PhasePresent)
	c.bind("settled")
}

// settle makes what is helped an entry, or refuses it, unless somebody else has
// settled it already.
func (c *code) settle(phase int32) {
	done := c.fresh("settle")
	c.add(asm.LoadMem(asm.R2, asm.R10, keptHelped, asm.DWord))
	c.change(asm.R2, phase)
	c.swapState(other, asm.R2, asm.R1, done)
	c.bind(done)
}

// decide returns, unless our own position was refused.
func (c *code) decide() {
	c.add(asm.LoadMem(entry, asm.R10, keptMine, asm.DWord), asm.LoadMem(asm.R2, asm.R10, keptState, asm.DWord))
	c.onlyNumber(asm.R2)
	c.add(asm.Mov.Reg(asm.R1, asm.R2), asm.Or.Imm(asm.R2, abi.PhaseRefused), asm.Or.Imm(asm.R1, abi.PhaseGone))
	c.swapState(entry, asm.R2, asm.R1, "refused")
	c.ret(0)
	c.bind("refused")
	c.leave()
}
