package bound

import (
	"math/rand/v2"
	"testing"

	"github.com/cilium/ebpf/asm"
)

// allTnums calls f with each tnum of w bits.
func allTnums(w Width, f func(Tnum)) {
	for m := range w.mask() + 1 {
		for v := range w.mask() + 1 {
			if v&m == 0 {
				f(Tnum{v, m})
			}
		}
	}
}

func (t Tnum) members(w Width) (all []uint64) {
	for v := range w.mask() + 1 {
		if t.Contains(v) {
			all = append(all, v)
		}
	}
	return all
}

// Every pair of tnums of 4 bits, with all that belongs to them. Of most
// operations the result is the smallest tnum that there is.
func TestTnumsOfFourBits(t *testing.T) {
	const w = 4
	for _, c := range []struct {
		op       asm.ALUOp
		abstract func(a, b Tnum) Tnum
		optimal  bool
	}{
		{asm.Add, func(a, b Tnum) Tnum { return a.add(b, w) }, true},
		{asm.Sub, func(a, b Tnum) Tnum { return a.sub(b, w) }, true},
		{asm.And, Tnum.and, true},
		{asm.Or, Tnum.or, true},
		{asm.Xor, Tnum.xor, true},
		{asm.Mul, func(a, b Tnum) Tnum { return a.mul(b, w) }, false},
	} {
		d := domain{w, w}
		allTnums(w, func(a Tnum) {
			allTnums(w, func(b Tnum) {
				got := c.abstract(a, b)
				var want Tnum
				first := true
				for _, x := range a.members(w) {
					for _, y := range b.members(w) {
						v := tnumConst(d.compute(c.op, true, x, y))
						if first {
							want, first = v, false
						}
						want = want.union(v)
					}
				}
				if !want.within(got) || c.optimal && got != want || got.Mask&got.Value != 0 || (got.Mask|got.Value)>>w != 0 {
					t.Fatalf("%v of %v and %v is %v, not %v", c.op, a, b, got, want)
				}
			})
		})
	}
}

func TestTnumSets(t *testing.T) {
	const w = 4
	allTnums(w, func(a Tnum) {
		allTnums(w, func(b Tnum) {
			both, ok := a.intersect(b)
			all := a.union(b)
			inside := true
			for v := range uint64(1 << w) {
				inA, inB := a.Contains(v), b.Contains(v)
				if (ok && both.Contains(v)) != (inA && inB) {
					t.Fatalf("%v and %v have in common %v", a, b, both)
				}
				if (inA || inB) && !all.Contains(v) {
					t.Fatalf("%v or %v is %v", a, b, all)
				}
				inside = inside && (inB || !inA)
			}
			if a.within(b) != inside {
				t.Fatalf("%v within %v: %v", a, b, !inside)
			}
		})
	})
	for low := range uint64(1 << w) {
		for high := low; high < 1<<w; high++ {
			got, want := tnumRange(low, high), tnumConst(low)
			for v := low; v <= high; v++ {
				want = want.union(tnumConst(v))
			}
			if !want.within(got) || got.Mask&got.Value != 0 {
				t.Fatalf("%d to %d is %v, not %v", low, high, got, want)
			}
		}
	}
}

// Every pair of intervals of 4 bits, unsigned and signed, under every operation
// of 4 and of 2 bits.
func TestIntervalsOfFourBits(t *testing.T) {
	d := domain{4, 2}
	var sets []Scalar
	for low := range uint64(16) {
		for high := low; high < 16; high++ {
			s := d.unknown()
			s.Wide.UMin, s.Wide.UMax = low, high
			sets = append(sets, d.tidy(s))
			s = d.unknown()
			s.Wide.SMin, s.Wide.SMax = int64(low)-8, int64(high)-8
			sets = append(sets, d.tidy(s))
		}
	}
	members := make([][]uint64, len(sets))
	for i, s := range sets {
		members[i] = d.members(s)
	}
	t.Parallel()
	step := 1
	if testing.Short() {
		step = 7
	}
	for i, a := range sets {
		for j := i % step; j < len(sets); j += step {
			b := sets[j]
			d.checkOps(t, a, b, members[i], members[j])
			if t.Failed() {
				return
			}
		}
	}
}

// checkOps checks every operation, jump and join of two sets.
func (d domain) checkOps(t *testing.T, a, b Scalar, inA, inB []uint64) {
	t.Helper()
	for _, wide := range []bool{true, false} {
		for _, op := range aluOps {
			got := d.alu(op, wide, a, b)
			for _, x := range inA {
				for _, y := range inB {
					if v := d.compute(op, wide, x, y); !d.contains(got, v) {
						t.Errorf("%v (wide %v) of %d and %d is %d, but of %v and %v it is %v", op, wide, x, y, v, a, b, got)
						return
					}
				}
			}
		}
		for _, op := range jumpOps {
			for _, taken := range []bool{true, false} {
				a2, b2, ok := d.refine(op, wide, taken, a, b)
				for _, x := range inA {
					for _, y := range inB {
						if d.taken(op, wide, x, y) == taken && (!ok || !d.contains(a2, x) || !d.contains(b2, y)) {
							t.Errorf("%v (wide %v) of %d and %d gives %v, but of %v and %v it leaves %v and %v (%v)",
								op, wide, x, y, taken, a, b, a2, b2, ok)
							return
						}
					}
				}
			}
		}
	}
	d.checkSets(t, a, b, inA, inB)
}

func (d domain) checkSets(t *testing.T, a, b Scalar, inA, inB []uint64) {
	t.Helper()
	all := a.Union(b)
	both, ok := d.intersect(a, b)
	wider := d.widen(a, b, []int64{-3, 0, 1, 5})
	for _, x := range inA {
		if !d.contains(all, x) || !d.contains(wider, x) {
			t.Errorf("%d of %v is lost in %v or %v", x, a, all, wider)
			return
		}
		if d.contains(b, x) && (!ok || !d.contains(both, x)) {
			t.Errorf("%d of %v and %v is lost in %v", x, a, b, both)
			return
		}
	}
	for _, x := range inB {
		if !d.contains(all, x) || !d.contains(wider, x) {
			t.Errorf("%d of %v is lost in %v or %v", x, b, all, wider)
			return
		}
	}
	if !a.Within(all) || !b.Within(all) {
		t.Errorf("%v and %v are not within %v", a, b, all)
	}
}

// Random sets in all their forms, with all that belongs to them.
func TestSetsOfSixBits(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	pairs := 3000
	if testing.Short() {
		pairs = 300
	}
	for range pairs {
		d := []domain{{6, 3}, {8, 4}, {4, 2}}[r.IntN(3)]
		a, _ := d.random(r)
		b, _ := d.random(r)
		d.checkOps(t, a, b, d.members(a), d.members(b))
		if t.Failed() {
			return
		}
	}
}

// Random sets of 64 bits, with the numbers that they were made of.
func TestSetsOf64Bits(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 20000 {
		a, inA := std.random(r)
		b, inB := std.random(r)
		std.checkOps(t, a, b, inA, inB)
		std.checkExtensions(t, a, inA)
		if t.Failed() {
			return
		}
	}
}

func (d domain) checkExtensions(t *testing.T, a Scalar, inA []uint64) {
	t.Helper()
	for _, c := range []struct {
		name string
		got  Scalar
		want func(x uint64) uint64
	}{
		{"movsx8", ALU(asm.MovSX8, true, Scalar{}, a), func(x uint64) uint64 { return uint64(int8(x)) }},
		{"movsx16", ALU(asm.MovSX16, true, Scalar{}, a), func(x uint64) uint64 { return uint64(int16(x)) }},
		{"movsx32", ALU(asm.MovSX32, true, Scalar{}, a), func(x uint64) uint64 { return uint64(int32(x)) }},
		{"movsx8 to 32 bits", ALU(asm.MovSX8, false, Scalar{}, a), func(x uint64) uint64 { return uint64(uint32(int8(x))) }},
		{"movsx16 to 32 bits", ALU(asm.MovSX16, false, Scalar{}, a), func(x uint64) uint64 { return uint64(uint32(int16(x))) }},
		{"le32", Swap(a, 4, false), func(x uint64) uint64 { return x & 0xffffffff }},
		{"le64", Swap(a, 8, false), func(x uint64) uint64 { return x }},
		{"be16", Swap(a, 2, true), func(x uint64) uint64 { return x&0xff<<8 | x>>8&0xff }},
		{"be64", Swap(a, 8, true), func(x uint64) (v uint64) {
			for i := range 8 {
				v = v<<8 | x>>(8*i)&0xff
			}
			return v
		}},
	} {
		for _, x := range inA {
			if v := c.want(x); !c.got.Contains(v) {
				t.Errorf("%s of %#x is %#x, but of %v it is %v", c.name, x, v, a, c.got)
				return
			}
		}
	}
}

// What programs rely on, by example.
func TestPrecision(t *testing.T) {
	any64, byteValue := Unknown(), Bytes(1, false)
	min := func(op asm.JumpOp, wide bool, limit uint64) Scalar {
		s, _, _ := Refine(op, wide, true, any64, Const(limit))
		return s
	}
	for _, c := range []struct {
		text string
		got  Scalar
		want string
	}{
		{"a byte", byteValue, "scalar(smin=0,smax=255,umax=255,var_off=(0x0; 0xff))"},
		{"a signed byte", Bytes(1, true), "scalar(smin=-128,smax=127)"},
		{"x &= 0x3f", ALU(asm.And, true, any64, Const(63)), "scalar(smin=0,smax=63,umax=63,var_off=(0x0; 0x3f))"},
		{"if x <= 64", min(asm.JLE, true, 64), "scalar(smin=0,smax=64,umax=64,var_off=(0x0; 0x7f))"},
		{"if w <= 64", min(asm.JLE, false, 64), "scalar(smax=9223372032559808576,umax=18446744069414584384,smin32=0,smax32=64,umax32=64,var_off=(0x0; 0xffffffff0000007f))"},
		{"w = w after it", ALU(asm.Mov, false, Scalar{}, min(asm.JLE, false, 64)), "scalar(smin=0,smax=64,umax=64,var_off=(0x0; 0x7f))"},
		{"x <<= 32, x >>= 32 after it", ALU(asm.RSh, true, ALU(asm.LSh, true, min(asm.JLE, false, 64), Const(32)), Const(32)), "scalar(smin=0,smax=64,umax=64,var_off=(0x0; 0x7f))"},
		{"8*byte+16", ALU(asm.Add, true, ALU(asm.LSh, true, byteValue, Const(3)), Const(16)), "scalar(smin=16,smax=2056,umin=16,umax=2056,var_off=(0x0; 0xff8))"},
		{"byte*24", ALU(asm.Mul, true, byteValue, Const(24)), "scalar(smin=0,smax=6120,umax=6120,var_off=(0x0; 0x1ff8))"},
		{"byte-1", ALU(asm.Sub, true, byteValue, Const(1)), "scalar(smin=-1,smax=254)"},
		{"byte%10", ALU(asm.Mod, true, byteValue, Const(10)), "scalar(smin=0,smax=9,umax=9,var_off=(0x0; 0xf))"},
		{"byte/10", ALU(asm.Div, true, byteValue, Const(10)), "scalar(smin=0,smax=25,umax=25,var_off=(0x0; 0x1f))"},
		{"(s8)byte s/ 3", ALU(asm.SDiv, true, Bytes(1, true), Const(3)), "scalar(smin=-42,smax=42)"},
		{"1 << byte", ALU(asm.LSh, true, Const(1), byteValue), "scalar(umin=1,umax=9223372036854775808)"},
	} {
		if got := c.got.String(); got != c.want {
			t.Errorf("%s is %s, not %s", c.text, got, c.want)
		}
	}
}

// A loop that counts comes to rest at the number that it is compared with.
func TestWidenFindsTheLimitOfALoop(t *testing.T) {
	limits := []int64{-1, 0, 1, 15, 16, 17}
	head, steps := Const(0), 0
	for {
		steps++
		body, _, ok := Refine(asm.JLT, true, true, head, Const(16))
		if !ok || steps > 10 {
			t.Fatalf("after %d steps: %v", steps, head)
		}
		next := ALU(asm.Add, true, body, Const(8))
		if next.Within(head) {
			break
		}
		head = head.Widen(next, limits)
	}
	if got := head.String(); got != "scalar(smin=0,smax=16,umax=16,var_off=(0x0; 0x18))" {
		t.Errorf("at the head: %s", got)
	}
}

// A chain of widenings ends, whatever comes.
func TestWidenEnds(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 2000 {
		limits := []int64{-1, 0, 1, 100, int64(r.Uint32())}
		s, _ := std.random(r)
		changes := 0
		for range 1000 {
			next, _ := std.random(r)
			if now := s.Widen(next, limits); now != s {
				s = now
				changes++
			}
		}
		if changes > 100 {
			t.Fatalf("%d steps", changes)
		}
	}
}

func FuzzScalar(f *testing.F) {
	f.Fuzz(func(t *testing.T, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 7))
		a, inA := std.random(r)
		b, inB := std.random(r)
		std.checkOps(t, a, b, inA, inB)
	})
}
