package lang

import (
	"encoding/binary"
	"strings"
	"testing"
)

// memory is what the target has at 0x1000: a struct, pointers, strings.
//
//	0x1000  struct s { int a = 7; short b = -2; char c[6] = "xyz"; struct s *next = 0x1020; unsigned f : 3 = 5; int g : 4 = -3; }
//	0x1020  the same: a = 70, b = 20, c = "abcdef" without a zero byte, next = 0
//	0x1040  "hello world"
//	0x1060  pointers: 0x1040, 0x1080, 0
//	0x1080  "second"
//	0x10a0  ints 10 20 30 40
//	0x1100  200 letters 'q'
func memory() []byte {
	b := make([]byte, 0x400)
	le := binary.LittleEndian
	put := func(at int, a int32, c int16, text string, next uint64, bits uint32) {
		le.PutUint32(b[at:], uint32(a))
		le.PutUint16(b[at+4:], uint16(c))
		copy(b[at+6:], text)
		le.PutUint64(b[at+16:], next)
		le.PutUint32(b[at+24:], bits)
	}
	put(0, 7, -2, "xyz", 0x1020, 5|13<<3)
	put(0x20, 70, 20, "abcdef", 0, 0)
	copy(b[0x40:], "hello world")
	le.PutUint64(b[0x60:], 0x1040)
	le.PutUint64(b[0x68:], 0x1080)
	copy(b[0x80:], "second")
	for i := range 4 {
		le.PutUint32(b[0xa0+4*i:], uint32(10*(i+1)))
	}
	for i := range 200 {
		b[0x100+i] = 'q'
	}
	return b
}

const structs = `
struct s { int a; short b; char c[6]; struct s *next; unsigned f : 3; int g : 4; };
struct outer { struct { int x; int y; }; struct s in; int list[4]; union { long l; char bytes[8]; } u; };
enum color { RED, GREEN = 5, BLUE };
typedef struct { char tag; long value; } pair_t;
#define LIMIT 40
#define TWICE(x) ((x) * 2)
macro add_one(x) { x + 1 }
macro bump($v) { $v += 10; }
macro put(@m, k, v) { @m[k] = v; }
macro swap_types(t, x) { (t)x }
fn square($x : int64) : int64 { return $x * $x; }
fn pick($x : int64) : int64 { if ($x > 5) { return 1; } return $x + 100; }
fn greet($who : string) : string { if ($who == "bob") { return "hi bob"; } return "who?"; }
`

// TestCompound runs statements with arg0 to arg5 = 0x1000, 3, -1, 0x1040, 0x1060, 0x10a0.
func TestCompound(t *testing.T) {
	mem := memory()
	for _, row := range compoundRows {
		b := newBench(t, structs+"uprobe:a:f { "+row.body+" }", Options{})
		b.machine.Comm, b.machine.Now = "worker", func() uint64 { return 12345 }
		b.machine.ReadUser = func(addr uint64, buf []byte) bool {
			if addr < 0x1000 || addr+uint64(len(buf)) > 0x1000+uint64(len(mem)) {
				return false
			}
			copy(buf, mem[addr-0x1000:])
			return true
		}
		if got := b.run(0, 0x1000, 3, ^uint64(0), 0x1040, 0x1060, 0x10a0); got != row.want {
			t.Errorf("%s\ngot  %q\nwant %q\n%s", row.body, got, row.want, b.script.Probes[0].Prog)
		}
	}
}

var compoundRows = []struct{ body, want string }{
	// Tuples and records.
	{`print((1, arg1))`, "print (1,3)"},
	{`print((1, "abc", arg1 > 2))`, "print (1,abc,true)"},
	{`print(((1, 2), (arg1, "x")))`, "print ((1,2),(3,x))"},
	{`$t = (1, "abc", arg1); print($t.0); print($t.1); print($t.2)`, "print 1; print abc; print 3"},
	{`$t = (1, ("in", arg1)); print($t.1.0); print($t.1.1); print($t.1)`, "print in; print 3; print (in,3)"},
	{`$t = (1, 2); $t = (arg0, arg1); print($t)`, "print (4096,3)"},
	{`$t = ("a", 1); $t = ("longer text", -1000); print($t)`, "print (longer text,-1000)"},
	{`print((1,)); $t = (arg1,); print($t.0)`, "print (1); print 3"},
	{`$r = (a=1, b="two"); print($r.a); print($r.b); print($r)`, "print 1; print two; print (1,two)"},
	{`$r = (a=1, b="two"); $r = (b="three", a=arg1); print($r)`, "print (3,three)"},
	{`print((1, arg1)[1])`, "print 3"},
	{`@t = (1, arg1); print(@t.0); print(@t.1)`, "print 1; print 3"},
	{`@t[1] = (arg1, "v"); $x = @t[1]; print($x.1); print(@t[1].0)`, "print v; print 3"},
	{`@t[arg1, "k"] = 5; print(@t[3, "k"]); print(@t[(3, "k")])`, "print 5; print 5"},
	{`@t[(1, 2), arg1] = 6; print(@t[(1, 2), 3])`, "print 6"},
	{`$k = (1, "k"); @u[$k] = 7; print(@u[1, "k"]); print(@u[$k])`, "print 7; print 7"},
	{`print((1, arg1) == (1, 3)); print((1, arg1) == (1, 4)); print((1, arg1) != (2, 3))`, "print true; print false; print true"},
	// Strings.
	{`$s = "abc"; print($s); $s = "longer"; print($s)`, "print abc; print longer"},
	{`$s = str(arg3); print($s); print($s == "hello world"); print($s == "hello"); print($s != "x")`, "print hello world; print true; print false; print true"},
	{`$s = str(arg3, 5); print($s); print(strlen($s))`, "print hello; print 5"},
	{`print(str(arg3, arg1))`, "print hel"},
	{`@s = str(arg3); @k[@s] = 1; print(@k["hello world"])`, "print 1"},
	{`@s["x"] = str(arg3); print(@s["x"]); print(@s["y"])`, "print hello world; print"},
	{`print(str(arg3) == str(arg3)); print(str(arg3) == comm); print(comm == "worker")`, "print true; print false; print true"},
	{`print(arg1 > 2 ? "yes" : "no"); print(arg1 > 5 ? "yes" : "no")`, "print yes; print no"},
	{`$s = arg1 > 2 ? str(arg3) : "no"; print($s)`, "print hello world"},
	{`print(strncmp(str(arg3), "help", 3)); print(strncmp(str(arg3), "help", 4)); print(strncmp(str(arg3), comm, 2))`, "print 0; print 1; print 1"},
	{`print(strcontains(str(arg3), "o w")); print(strcontains(str(arg3), "ow")); print(strcontains(str(arg3), ""))`, "print true; print false; print true"},
	{`print(strstr(str(arg3), "world")); print(strstr(str(arg3), "worlds")); print(strstr("hello", "l"))`, "print 6; print -1; print 2"},
	{`$a = "ab"; $b = str(arg3, 3); print(str_concat($a, $b)); print(str_concat("x", "y"))`, "print abhel; print xy"},
	{`print(str(arg0 + 0x100)); print(str(0)); print(strlen(str(arg0 + 0x100, 150)))`, "print " + q(127) + "..; print; print 150"},
	{`print(buf(arg3, 3)); print(buf(arg3, arg1))`, `print "hel"; print "hel"`},
	{`$s = "hello"; print($s[1]); print(strcap($s))`, "print 101; print 7"},
	// Pointers and structs.
	{`$p = (struct s *)arg0; print($p.a); print($p->b); print($p.c); print($p.next.a); print($p.next.c)`, "print 7; print -2; print xyz; print 70; print abcdef"},
	{`$p = (struct s *)arg0; print($p.f); print($p.g)`, "print 5; print -3"},
	{`$v = *(struct s *)arg0; print($v.a); print($v.c); print($v.f); print($v.g); print($v.next.b)`, "print 7; print xyz; print 5; print -3; print 20"},
	{`$v = *((struct s *)arg0)->next; print($v.c)`, "print abcdef"},
	{`@v = *(struct s *)arg0; print(@v.a); print(@v.c)`, "print 7; print xyz"},
	{`print(*(struct s *)arg0)`, "print (7,-2,xyz,4128,5,-3)"},
	{`$i = (int32 *)arg5; print(*$i); print($i[2]); print(*($i + 3)); $i++; print(*$i)`, "print 10; print 30; print 40; print 20"},
	{`print(*(int8 *)arg3); print(((int32[4] *)arg5)[0][1])`, "print 104; print 20"},
	{`$a = *(int32[4] *)arg5; print($a); print($a[2]); print($a[arg1]); print($a[9 + arg1])`, "print (10,20,30,40); print 30; print 40; print 0"},
	{`print(str(*(uint64 *)arg4)); print(str(((char **)arg4)[1]))`, "print hello world; print second"},
	{`$p = (int32 *)arg5; print($p + 1 > $p); print((uint64)($p + 2) - arg5); print($p != 0)`, "print true; print 8; print true"},
	{`$p = (struct s *)0; print($p.a); print($p == 0)`, "print 0; print true"},
	{`print(sizeof(struct s)); print(offsetof(struct s, next)); print(sizeof(struct outer)); print(sizeof(int32)); print(sizeof(pair_t)); print(sizeof(arg0))`, "print 32; print 16; print 64; print 4; print 16; print 8"},
	{`print(&((struct s *)arg0).next.b)`, "print 4132"},
	{`$p = container_of((uint64)arg0 + 16, typeof(struct s), next); print($p.a)`, "print 7"},
	{`print((int8[8])12345); $a = (uint8[4])(uint32)0x04030201; print($a[1]); print((uint32)$a)`, "print (57,48,0,0,0,0,0,0); print 2; print 67305985"},
	{`print(GREEN); print(BLUE); print((enum color)5 == GREEN)`, "print 5; print 6; print true"},
	{`print(LIMIT + 2); print(TWICE(arg1))`, "print 42; print 6"},
	// Blocks, conditions, loops.
	{`$a = { let $b = 2; $b + arg1 }; print($a)`, "print 5"},
	{`$a = if (arg1 > 2) { 1 } else { 2 }; print($a)`, "print 1"},
	{`$a = if (arg1 > 5) { "x" } else if (arg1 > 2) { "y" } else { "z" }; print($a)`, "print y"},
	{`$i = 0; while ($i < 5) { $i++; if ($i == 2) { continue; } if ($i == 4) { break; } print($i) }`, "print 1; print 3"},
	{`for ($i : 0..3) { print($i) }`, "print 0; print 1; print 2"},
	{`for ($i : arg1..6) { $i += 10; print($i) }`, "print 13; print 14; print 15"},
	{`$n = 3; for ($i : 0..$n) { $n--; print(($i, $n)) }`, "print (0,2); print (1,1); print (2,0)"},
	{`for ($i : -1..1) { for ($j : 0..2) { if ($j == 1) { break; } print(($i, $j)) } }`, "print (-1,0); print (0,0)"},
	{`unroll (3) { print("x") }`, "print x; print x; print x"},
	{`$a = 1; unroll (4) { $a = $a * 2; if ($a == 8) { break; } } print($a)`, "print 8"},
	{`unroll (2) { let $x = arg1; $x++; print($x) }`, "print 4; print 4"},
	{`$s = 0; for ($i : 0..10) { $s += $i; @m[$i] = $s } print(@m[9]); print($s)`, "print 45; print 45"},
	// Calls under conditions.
	{`@m = 1; $a = arg1 > 5 && @m++; print(@m + 0); $b = arg1 > 2 && @m++; print(@m + 0); print($b)`, "print 1; print 2; print true"},
	{`@m = 1; print(arg1 > 2 ? @m++ : 0); print(arg1 > 5 ? @m++ : 9); print(@m + 0)`, "print 1; print 9; print 2"},
	{`@m = 10; $a = 1; $a = $a++ + @m; print($a)`, "print 11"},
	{`$a = 1; print($a + { $a = 5; $a } + $a)`, "print 11"},
	{`@m = 5; if (@m == 5 || @m++ == 7) { print(@m + 0) }`, "print 5"},
	{`$a = @x ?: 7; print($a); @x = 1`, "print 7"},
	// Macros and functions.
	{`print(add_one(arg1)); $v = 1; bump($v); print($v); put(@w, 1, "x"); print(@w[1])`, "print 4; print 11; print x"},
	{`print(swap_types(typeof(uint8), -1))`, "print 255"},
	{`print(square(arg1)); print(square(2) + square(3))`, "print 9; print 13"},
	{`print(pick(3)); print(pick(6)); print(pick(pick(1)))`, "print 103; print 1; print 1"},
	{`print(greet("bob")); print(greet("eve"))`, "print hi bob; print who?"},
	{`let $v; @m[1] = 5; if (find(@m, 1, $v)) { print($v) } if (!find(@m, 2, $v)) { print("no") }`, "print 5; print no"},
	{`assert(arg1 == 3, "no"); print(1)`, "print 1"},
	// Others.
	{`print(nsecs); print(nsecs(monotonic)); print(bswap((uint16)0x1234)); print(bswap(arg1))`, "print 12345; print 12345; print 13330; print 216172782113783808"},
	{`print(is_str("x")); print(is_integer(arg0)); print(is_ptr((int8 *)arg0)); print(is_array(arg0))`, "print true; print true; print true; print false"},
	{`print(ntop(0x0100007f)); print(pton("1.2.3.4")); print(macaddr((char *)arg3))`, `print "\x7f\x00\x00\x01"; print (1,2,3,4); print "hello "`},
	{`print(comptime (1 + 2)); print(probetype); print(usym(arg0))`, "print 3; print uprobe; print 4096"},
	{`print(strftime("%H", nsecs)); time("%M\n"); cat("/x/%d", 5); system("ls %s", "a"); errorf("e %d", arg1); warnf("w")`, "print 12345; time; cat 5; system a; errorf 3; warnf"},
	{`join(arg4); join(arg4, ",")`, "join hello world,second,,,,,,,,,,,,,,; join hello world,second,,,,,,,,,,,,,,"},
	{`@h = hist(arg1); print(@h)`, "print @h top 0 div 1"},
}

func q(n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = 'q'
	}
	return string(b)
}

// TestDeepBlocks: the time to compile does not double with each level of nesting.
func TestDeepBlocks(t *testing.T) {
	const n = 60
	src := "begin { $x = " + strings.Repeat("{ 1 + ", n) + "1" + strings.Repeat(" }", n) + "; print($x) }"
	if _, err := Compile(src, "deep", Options{}); err != nil {
		t.Log(err) // it may need too much of the stack
	}
}
