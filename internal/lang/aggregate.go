package lang

import (
	"math"
	"math/bits"

	"github.com/cilium/ebpf/asm"

	"trapless/internal/bpf"
)

// Buckets says how Hist and LHist divide their values.
//
// A Hist has 2^Bits buckets for each power of two. Bucket i is for value i as
// long as i is below 2^Bits; then come the buckets of one power after the other,
// and at last one for all values below zero.
//
// An LHist has a bucket for the values below Min, then one for each Step from
// Min on, and one for what is above Max, which the last step may share.
type Buckets struct {
	Bits           uint
	Min, Max, Step int64
}

// histNegative is the bucket of a Hist for values below zero.
func (b Buckets) histNegative() int { return (64 - int(b.Bits)) << b.Bits }

// linearLast is the last bucket of an LHist.
func (b Buckets) linearLast() int { return 1 + int((b.Max-b.Min)/b.Step) }

// Count is the number of buckets.
func (b Buckets) Count() int {
	if b.Step != 0 {
		return b.linearLast() + 1
	}
	return b.histNegative() + 1
}

// Value is what a cell, given as its words, says as one number, whose sign
// m.Signed tells: the count, the sum, the average, the extreme, or of a
// histogram how many values it has. Cells without values are 0.
func (m *Map) Value(cell []uint64) uint64 {
	word := func(off int) uint64 {
		if off/8 >= len(cell) {
			return 0
		}
		return cell[off/8]
	}
	count, second := word(CellCount), word(CellTotal)
	switch m.Agg {
	case Plain:
		if len(cell) == 0 {
			return 0
		}
		return m.ValueOf(cell).Int
	case Count:
		return count
	case Sum:
		return second
	case TSeries:
		return lastPoint(cell)
	case Hist, LHist:
		total := uint64(0)
		for _, n := range cell {
			total += n
		}
		return total
	}
	switch {
	case count == 0: // zero() was called
		return 0
	case m.Agg == Min || m.Agg == Max:
		return second ^ extremeCode(m.Agg, m.Signed)
	case m.Signed:
		return uint64(int64(second) / int64(count))
	}
	return second / count
}

// extremeCode is what a value of Min or Max is xored with to be kept in a cell:
// there the next value is always the larger number, and 0, a cell without a
// value, the smallest.
func extremeCode(a Agg, signed bool) uint64 {
	var code uint64
	if a == Min {
		code = math.MaxUint64
	}
	if signed {
		code ^= 1 << 63
	}
	return code
}

// Of is the bucket of a value.
func (b Buckets) Of(v int64) int {
	switch {
	case b.Step != 0 && v < b.Min:
		return 0
	case b.Step != 0 && v > b.Max:
		return b.linearLast()
	case b.Step != 0:
		return 1 + int((v-b.Min)/b.Step)
	case v < 0:
		return b.histNegative()
	case v < 1<<b.Bits:
		return int(v)
	}
	p := bits.Len64(uint64(v)) - 1 - int(b.Bits)
	return p<<b.Bits + int(v>>p)
}

// cellSize is the size of a cell in bytes.
func (m *mapInfo) cellSize() int {
	switch m.agg {
	case Plain:
		size := 8 * max(1, m.value.Words())
		if len(m.keys) == 0 {
			size += plainValue
		}
		return size
	case Count, TSeries:
		return 8
	case Hist, LHist:
		return 8 * m.buckets.Count()
	}
	return 16
}

// aggregate adds to the running thread's cell of a map:
//
//	r0 = cell of the key; if it is there, *r0 += 1, and for a sum *(r0+8) += value
func (l *lowerer) aggregate(m *mapExpr, call *callExpr) {
	info := l.maps[m.name]
	key := l.key(m)
	value := lastingValue{release: func() {}}
	switch {
	case info.agg == Hist || info.agg == LHist:
		value = l.bucket(info, call.args[0])
	case len(call.args) > 0:
		value = l.lasting(call.args[0])
	}
	l.emit(bpf.LoadMap(asm.R1, info.number))
	l.stackAddr(asm.R2, key)
	l.helper(bpf.HelperMapCell)
	done := l.newLabel()
	if len(m.keys) > 0 {
		l.jumpImm(asm.JEq, asm.R0, 0, done)
	}
	l.movImm(asm.R1, 1)
	switch info.agg {
	case Hist, LHist:
		l.addBucket(value)
	case Sum, Avg, Stats:
		l.add(CellCount, asm.R1)
		l.add(CellTotal, l.reload(value))
	case Min, Max:
		l.add(CellCount, asm.R1)
		l.extreme(info, value)
	default:
		l.add(CellCount, asm.R1)
	}
	value.release()
	l.bind(done)
}

// addBucket adds r1 to a bucket of the cell at r0.
func (l *lowerer) addBucket(bucket lastingValue) {
	switch {
	case bucket.con.known:
		l.add(int16(8*bucket.con.u), asm.R1)
		return
	case bucket.home.inReg:
		l.mov(asm.R2, bucket.home.reg)
	default:
		l.load(asm.R2, bucket.home.off)
	}
	l.aluImm(asm.LSh, asm.R2, 3)
	l.aluReg(asm.Add, asm.R2, asm.R0)
	l.emit(asm.AddAtomic.Mem(asm.R2, asm.R1, asm.DWord, 0))
}

// extreme raises the word at CellExtreme of the cell at r0. A signal handler of
// the thread may do the same in between, so the word is compared when it is
// written:
//
//	while ((old = *word) < new && !swap(word, old, new)) ;
func (l *lowerer) extreme(info *mapInfo, value lastingValue) {
	l.mov(asm.R2, asm.R0)
	if value.con.known {
		l.movImm(asm.R1, value.con.u^extremeCode(info.agg, info.signed))
	} else {
		l.code(l.reload(value), info)
	}
	done, again := l.newLabel(), l.newLabel()
	l.emit(asm.LoadMem(asm.R0, asm.R2, CellExtreme, asm.DWord))
	l.bind(again)
	l.jumpReg(asm.JGE, asm.R0, asm.R1, done)
	l.mov(asm.R3, asm.R0)
	l.emit(asm.CmpXchg.Mem(asm.R2, asm.R1, asm.DWord, CellExtreme))
	l.jumpReg(asm.JNE, asm.R0, asm.R3, again)
	l.bind(done)
}

// code makes r1 a value as a cell of Min or Max keeps it.
func (l *lowerer) code(r asm.Register, info *mapInfo) {
	l.mov(asm.R1, r)
	switch code := extremeCode(info.agg, info.signed); {
	case code == 0:
	case small(code):
		l.aluImm(asm.Xor, asm.R1, int32(code))
	default:
		l.movImm(asm.R3, code)
		l.aluReg(asm.Xor, asm.R1, asm.R3)
	}
}

// bucket computes the number of a value's bucket.
func (l *lowerer) bucket(info *mapInfo, x expr) lastingValue {
	b := info.buckets
	v := lastingValue{release: func() {}}
	if con := x.base().con; con.known && pure(x) {
		v.con = constant{known: true, u: uint64(b.Of(int64(con.u)))}
		return v
	}
	r, release := l.operand(x)
	l.mov(asm.R1, r)
	release()
	if info.agg == Hist {
		l.histBucket(b)
	} else {
		l.linearBucket(b)
	}
	spare := l.spare
	v.home = l.newHome()
	v.release = func() { l.spare = spare }
	l.setHome(v.home, asm.R0)
	return v
}

// histBucket makes r0 the bucket of the value in r1.
func (l *lowerer) histBucket(b Buckets) {
	if b.Bits == 0 { // a value below zero has 64 bits
		l.helper(bpf.HelperBitLength)
		return
	}
	k := int32(b.Bits)
	done, negative := l.newLabel(), l.newLabel()
	l.jumpImm(asm.JSLT, asm.R1, 0, negative)
	l.mov(asm.R0, asm.R1)
	l.jumpImm(asm.JLT, asm.R1, 1<<k, done)
	n := l.push(8)
	l.store(n, asm.R1)
	l.helper(bpf.HelperBitLength)
	// The highest bit is at p = r0-1. It and the k bits behind it, as a number,
	// are the bucket if p is k; each p more is 2^k buckets more.
	l.aluImm(asm.Sub, asm.R0, 1+k)
	l.load(asm.R1, n)
	l.aluReg(asm.RSh, asm.R1, asm.R0)
	l.aluImm(asm.LSh, asm.R0, k)
	l.aluReg(asm.Add, asm.R0, asm.R1)
	l.jumpImm(asm.JLT, asm.R0, int32(b.histNegative()), done)
	l.bind(negative)
	l.movImm(asm.R0, uint64(b.histNegative()))
	l.bind(done)
}

// linearBucket makes r0 the bucket of the value in r1.
func (l *lowerer) linearBucket(b Buckets) {
	done, above := l.newLabel(), l.newLabel()
	compare := func(op asm.JumpOp, with int64, to label) {
		if small(uint64(with)) {
			l.jumpImm(op, asm.R1, int32(with), to)
			return
		}
		l.movImm(asm.R2, uint64(with))
		l.jumpReg(op, asm.R1, asm.R2, to)
	}
	last := b.linearLast()
	l.movImm(asm.R0, 0)
	compare(asm.JSLT, b.Min, done)
	compare(asm.JSGT, b.Max, above)
	l.mov(asm.R0, asm.R1)
	switch {
	case b.Min == 0:
	case small(uint64(b.Min)):
		l.aluImm(asm.Sub, asm.R0, int32(b.Min))
	default:
		l.movImm(asm.R2, uint64(b.Min))
		l.aluReg(asm.Sub, asm.R0, asm.R2)
	}
	l.divide(uint64(b.Step), uint64(b.Max-b.Min))
	l.aluImm(asm.Add, asm.R0, 1)
	l.jumpImm(asm.JLT, asm.R0, int32(last), done)
	l.bind(above)
	l.movImm(asm.R0, uint64(last))
	l.bind(done)
}

// divide divides r0, which is at most limit: by a shift, or by a multiplication
// with the reciprocal, rounded up to p bits behind the point, if that is exact
// (Granlund and Montgomery, Division by Invariant Integers using Multiplication,
// 1994), or by a division.
func (l *lowerer) divide(by, limit uint64) {
	switch p, m, ok := reciprocal(by, limit); {
	case by&(by-1) == 0:
		if by > 1 {
			l.aluImm(asm.RSh, asm.R0, int32(bits.TrailingZeros64(by)))
		}
	case ok && small(m):
		l.aluImm(asm.Mul, asm.R0, int32(m))
		l.aluImm(asm.RSh, asm.R0, int32(p))
	case small(by):
		l.aluImm(asm.Div, asm.R0, int32(by))
	default:
		l.movImm(asm.R2, by)
		l.aluReg(asm.Div, asm.R0, asm.R2)
	}
}

// reciprocal finds p and m so that x*m >> p is x/by for all x up to limit, and
// x*m has no more than 64 bits.
func reciprocal(by, limit uint64) (p uint, m uint64, ok bool) {
	for p = 1; p < 63; p++ {
		m = (1<<p + by - 1) / by
		if m > math.MaxInt32 || limit > math.MaxUint64/m {
			break
		}
		if e := m*by - 1<<p; e == 0 || limit < 1<<p/e {
			return p, m, true
		}
	}
	return 0, 0, false
}
