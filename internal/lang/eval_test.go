package lang

import (
	"strings"
	"testing"
)

// TestPrint runs print(EXPRESSION) and compares what is printed. arg0 is 10,
// arg1 is -3, arg2 is 0, arg3 is 1<<40, arg4 is 0x8000000000000001, arg5 is 7.
func TestPrint(t *testing.T) {
	for _, row := range []struct{ expr, want string }{
		// Literals.
		{"5", "5"}, {"-5", "-5"}, {"0xff", "255"}, {"1e3", "1000"}, {"010", "8"}, {"5ms", "5000000"},
		{"18446744073709551615", "18446744073709551615"}, {"-9223372036854775808", "-9223372036854775808"},
		{"true", "true"}, {"false", "false"}, {`"text"`, "text"},
		// Precedence and grouping are C's.
		{"1 + 2 * 3", "7"}, {"1 + 2 * 3 + 1 * 10", "17"}, {"1 + 2 / 2 * 3", "4"}, {"(1 + 2) * 3", "9"},
		{"10 - 4 - 3", "3"}, {"2 * 7 % 5", "4"}, {"1 << 2 + 1", "8"}, {"1 | 6 & 4 ^ 4", "1"},
		{"1 + 1 == 2", "true"}, {"3 > 2 == true", "true"}, {"1 < 2 && 2 < 1 || 1 < 2", "true"},
		{"arg0 + 2 * arg5", "24"}, {"(arg0 + 2) * arg5", "84"}, {"arg0 - 4 - 3", "3"}, {"100 - arg0 - arg5", "83"},
		{"arg0 & 8 == 8", "0"}, {"arg0 << 1 + 1", "40"}, {"-arg0 * 2", "18446744073709551596"},
		{"1 ? 2 : 3 ? 4 : 5", "2"}, {"arg2 ? 2 : arg0 ? 4 : 5", "4"},
		// Literals are computed by their value.
		{"3 - 5", "-2"}, {"-7 / 2", "-3"}, {"-7 % 3", "-1"}, {"7 / -2", "-3"}, {"-1 >> 1", "-1"}, {"-8 >> 1", "-4"},
		{"~0", "18446744073709551615"}, {"~-1", "0"}, {"~5 & 0xff", "250"}, {"!5", "false"}, {"!0", "true"},
		{"- -5", "5"}, {"-0", "0"}, {"1 << 63", "9223372036854775808"}, {"-1 << 4", "-16"},
		{"9223372036854775807 + 1", "9223372036854775808"}, {"-5 < 3", "true"}, {"0xffffffffffffffff > -1", "true"},
		{"-5 > -3", "false"}, {"-5 >= -5", "true"}, {"3 <= 2", "false"}, {"-1 == 1", "false"}, {"-1 != 1", "true"}, {"5 && 0", "false"},
		{"-5 || 0", "true"}, {"true && 5", "true"}, {"-1 | 4", "-1"}, {"6 * -2", "-12"}, {"7 % -2", "1"}, {"-5 + 3", "-2"},
		{"3 + -5", "-2"}, {"3 - -5", "8"}, {"-3 - 5", "-8"}, {"-9223372036854775808 / -1", "9223372036854775808"},
		{"18446744073709551615 - 18446744073709551614", "1"}, {"1 - 9223372036854775809", "-9223372036854775808"},
		{"6 & -2", "6"}, {"5 ^ -1", "-6"}, {`"a" == "a"`, "true"}, {`"a" != "a"`, "false"},
		// Types: arguments are uint64, differences int64.
		{"arg0 - 11", "-1"}, {"arg0 + (-11)", "-1"}, {"(uint64)(arg0 - 11)", "18446744073709551615"},
		{"arg1", "18446744073709551613"}, {"(int64)arg1", "-3"}, {"arg1 + 1", "18446744073709551614"},
		{"(int64)arg1 + 1", "-2"}, {"-(int64)arg1", "3"}, {"~arg2", "18446744073709551615"}, {"~(int64)arg2", "-1"},
		// Casts.
		{"(uint8)arg1", "253"}, {"(int8)arg1", "-3"}, {"(uint16)arg1", "65533"}, {"(int16)arg1", "-3"},
		{"(uint32)arg1", "4294967293"}, {"(int32)arg1", "-3"}, {"(uint32)arg3", "0"}, {"(uint8)300", "44"},
		{"(int8)200", "-56"}, {"(int8)(uint8)arg1", "-3"}, {"(uint8)(int8)arg1", "253"}, {"(bool)arg0", "true"},
		{"(bool)arg2", "false"}, {"(int32)true", "1"}, {"(uint64)(arg0 > 1)", "1"}, {"(uint64_t)arg0", "10"},
		{"(int8)(arg0 ? (uint8)arg1 : (int8)arg2)", "-3"}, {"(uint64)0x10000000000 >> 33", "128"},
		{"(uint64)1 << 40", "1099511627776"}, {"(uint64)arg0 / (uint64)3", "3"}, {"(int32)-7 / 2", "-3"}, {"(uint8)250 + 10", "260"},
		{"(int)arg1", "-3"}, {"(pid)", "4711"}, {"(uint16)-1", "65535"}, {"(int8)-1 < arg0", "true"},
		// Division.
		{"arg0 / 3", "3"}, {"arg0 % 3", "1"}, {"arg0 / arg2", "1"}, {"arg0 % arg2", "1"},
		{"(int64)arg1 / 2", "-1"}, {"(int64)arg1 % 2", "-1"}, {"arg1 / 2", "9223372036854775806"},
		{"(arg5 - 10) / 2", "-1"}, {"100 / arg0", "10"}, {"100 % arg5", "2"}, {"arg0 / 0", "1"}, {"arg0 % 0", "1"},
		// Shifts count modulo 64 and shift in zeros.
		{"1 << arg0", "1024"}, {"arg0 >> 1", "5"}, {"(int64)arg1 >> 1", "9223372036854775806"},
		{"arg0 << 64", "10"}, {"arg0 << (arg5 + 57)", "10"}, {"arg4 >> 63", "1"},
		// Comparisons are signed unless both sides are unsigned.
		{"arg1 > arg0", "true"}, {"(int64)arg1 > arg0", "false"}, {"(int64)arg1 > (int64)arg0", "false"},
		{"arg1 > 5", "true"}, {"5 < arg1", "true"}, {"(int64)arg1 < 5", "true"}, {"arg1 > -1", "false"},
		{"arg4 < 0", "false"}, {"(int64)arg4 < 0", "true"}, {"arg0 == 10", "true"}, {"10 != arg0", "false"},
		{"arg3 == 1099511627776", "true"}, {"1099511627776 <= arg3", "true"}, {"arg3 >= 1099511627777", "false"},
		{"(uint8)arg1 == 253", "true"}, {"(int8)arg1 == -3", "true"}, {"(int8)arg1 < (uint32)arg0", "true"},
		// Logic.
		{"arg0 && arg2", "false"}, {"arg0 || arg2", "true"}, {"!arg0", "false"}, {"!arg2", "true"}, {"!!arg0", "true"},
		{"arg0 && 1", "true"}, {"0 && arg0", "false"}, {"1 || arg0", "true"}, {"arg2 || 0", "false"},
		{"!(arg0 && arg2)", "true"}, {"!(arg0 > 5 || arg2)", "false"}, {"(arg0 > 1) + (arg5 > 1)", "true"},
		{"((arg0 > 1) + (arg5 > 1)) == true", "true"}, {"(arg0 > 1) + 1", "2"}, {"arg0 & 2 ? 1 : 2", "1"}, {"arg0 & 4 ? 1 : 2", "2"}, {"!(arg0 & 4) ? 1 : 2", "1"},
		{"(arg0 & arg5) && 1", "true"},
		// Conditional.
		{"arg0 ? arg5 : arg2", "7"}, {"arg2 ? arg5 : arg0", "10"}, {"arg0 ?: 5", "10"}, {"arg2 ?: 5", "5"},
		{"arg2 ? 1 : -1", "-1"}, {"1 ? arg0 : arg5", "10"}, {`1 ? "a" : "b"`, "a"}, {"arg0 > 5 ? 1 : 0", "1"},
		// Builtins.
		{"pid", "4711"}, {"pid()", "4711"}, {"pid == 4711", "true"}, {"pid + arg0", "4721"},
		// Constants with more than 32 bits.
		{"arg0 + 0x100000000", "4294967306"}, {"arg3 | 0x8000000000000000", "9223373136366403584"},
		{"arg0 + 0x80000000", "2147483658"}, {"arg3 & 0xffffffffff", "0"},
		// Left operands that wait for right ones, deeper than there are registers.
		{"arg0-(arg0-(arg0-(arg0-(arg0-(arg0-(arg0-(arg0-arg5)))))))", "7"},
		{"arg0 - (arg5 - (arg0 > (arg5 - (arg0 - (arg5 - arg2))) ? arg0 : arg5))", "13"},
		{"1-(arg0-(arg0-(arg0-(arg0-((arg0+arg5)==(arg5+arg0)?arg5:arg0)))))", "-6"},
		{"arg0*(arg0-(arg0*(arg0-(arg0*(arg0-(arg0*(arg0-(arg0==arg0))))))))", "-80900"},
	} {
		b := newBench(t, "uprobe:a:f { print("+row.expr+") }", Options{})
		got := b.run(0, 10, ^uint64(2), 0, 1<<40, 1<<63|1, 7)
		if got != "print "+row.want {
			t.Errorf("%s = %s, want %s\n%s", row.expr, got, row.want, b.script.Probes[0].Prog)
		}
	}
}

// TestStatements runs statements with arguments 10, 20 and 0.
func TestStatements(t *testing.T) {
	for _, row := range []struct{ name, body, want string }{
		{"assignment", "$a = arg0; $b = $a + arg1; print($b)", "print 30"},
		{"compound", "$a = arg0; $a += 5; $a *= 2; $a -= 1; $a /= 3; $a %= 5; print($a)", "print 4"},
		{"compound bits", "$a = 6; $a <<= 2; $a |= 3; $a &= 0x1e; $a ^= 1; $a >>= 1; print($a)", "print 13"},
		{"self on the right", "$a = arg0; $a = 100 - $a; print($a); $a = arg1 * 2 - $a; print($a)", "print 90; print -50"},
		{"post increment", "$a = 5; $b = $a++; print($a); print($b)", "print 6; print 5"},
		{"pre decrement", "$a = 5; $b = --$a; print($a); print($b)", "print 4; print 4"},
		{"increment in order", "$a = 5; print($a++ + $a * 10)", "print 65"},
		{"increment on both sides", "$a = 5; print($a == $a++); print($a++ == $a)", "print true; print false"},
		{"increment wraps a declared type", "let $a: uint8 = 255; $a++; print($a)", "print 0"},
		{"unsigned stays unsigned", "$a = arg2; $a++; print($a - 2 < 0)", "print true"},
		{"elvis computes once", "$a = 5; print($a++ ?: 3); print($a)", "print 5; print 6"},
		{"let is zero", "let $a; if (arg0 > 100) { $a = arg0 } print($a)", "print 0"},
		{"let with a type", "let $a: int16; $a = (int16)arg0; print($a)", "print 10"},
		{"let with a value", "let $a = arg0; print($a)", "print 10"},
		{"declared type cuts", "let $a: uint8 = arg0 * 100; print($a)", "print 232"},
		{"literal takes the sign of later values", "$a = 1; $a = arg0 - 20; print($a)", "print -10"},
		{"if", `if (arg0 > 5) { print("a") }`, "print a"},
		{"if not", `if (arg0 > 50) { print("a") } print("b")`, "print b"},
		{"else", `if (arg0 > 50) { print("a") } else { print("b") }`, "print b"},
		{"else if", `if (arg0 == 1) { print("a") } else if (arg0 == 10) { print("b") } else { print("c") }`, "print b"},
		{"if without parentheses", `if arg0 { print("a") }`, "print a"},
		{"constant if", `if (0) { print("a") } else { print("b") } if (1) { print("c") }`, "print b; print c"},
		{"large constants", "$a=pid;$b=arg0;$c=arg1;$d=arg2;$e=0x123456789a;$e+=1;print($e);$f=-5;print($f);$g=0x7fffffffffff;print($g)", "print 78187493531; print -5; print 140737488355327"},
		{"nested blocks", `$a = 1; { $a = 2; $b = 3; } print($a)`, "print 2"},
		{"a name in two blocks", `if (arg0) { $x = 1; print($x) } if (arg0) { $x = arg1; print($x) }`, "print 1; print 20"},
		{"conditional statement", `arg0 > 5 ? print("a") : print("b")`, "print a"},
		{"return", `print("a"); return; print("b")`, "print a"},
		{"return in a branch", `if (arg0) { print("a"); return 1 } print("b")`, "print a"},
		{"return in all branches", `if (arg0) { return; } else { return; } print("b")`, ""},
		{"exit ends the run", `print("a"); exit(); print("b")`, "print a; exit 0"},
		{"exit with a status", `exit(arg0 - 7)`, "exit 3"},
		{"exit in a branch", `if (arg2) { exit(1); } print("b")`, "print b"},
		{"discard", "_ = arg0;", ""},
		{"discard with an effect", "$a = 1; _ = $a++ + 2; print($a)", "print 2"},
		{"printf", `printf("%d %s %d\n", arg0, "str", 5)`, "printf 10,str,5"},
		{"printf without values", `printf("hello\n");`, "printf"},
		{"printf of a bool", `printf("%d", arg0 > 1)`, "printf true"},
		{"maps", `@x = count(); print(@x); clear(@x); zero(@x)`, "print @x top 0 div 1; clear @x; zero @x"},
		{"print with limits", `@x[1] = count(); print(@x, 3); print(@x, 3, 10); print(@x, 0, 0)`,
			"print @x top 3 div 1; print @x top 3 div 10; print @x top 0 div 1"},
		{"many variables", `$a=arg0; $b=$a+1; $c=$b+1; $d=$c+1; $e=$d+1; $f=$e+1; $g=$f+1; $h=$g+1;
			$e++; $h += $e--; print($a+$b+$c+$d+$e+$f+$g+$h == 10+11+12+13+14+15+16+17+15); print($e); print(--$f); print($g == $h)`,
			"print true; print 14; print 14; print false"},
		{"arguments after calls", `printf("%d", arg0); $x = pid; printf("%d %d", arg1, $x)`, "printf 10; printf 20,4711"},
		{"arguments in branches", `if (arg0 == 1) { print(arg0) } else { print(arg1) } print(arg0)`, "print 20; print 10"},
		{"trailing semicolons", `;;print(1);;`, "print 1"},
		{"empty", ``, ""},
	} {
		b := newBench(t, "uprobe:a:f { "+row.body+" }", Options{})
		if got := b.run(0, 10, 20, 0); got != row.want {
			t.Errorf("%s: got %q, want %q\n%s", row.name, got, row.want, b.script.Probes[0].Prog)
		}
	}
}

func TestPredicates(t *testing.T) {
	for _, row := range []struct {
		predicate string
		runs      bool
	}{
		{"arg0 == 10", true}, {"arg0 != 10", false}, {"arg0", true}, {"arg2", false}, {"1", true}, {"0", false},
		{"arg0 / 2 == 5", true}, {"pid == 4711 && arg0 > 3", true}, {"pid == 1 || arg0 > 30", false}, {"!arg2", true},
	} {
		b := newBench(t, "uprobe:a:f /"+row.predicate+"/ { print(1) }", Options{})
		if got := b.run(0, 10, 20, 0) != ""; got != row.runs {
			t.Errorf("/%s/ runs: %v, want %v", row.predicate, got, row.runs)
		}
	}
}

func TestCountAndSum(t *testing.T) {
	b := newBench(t, `uprobe:a:f { @n = count(); @s = sum(arg0); @t = sum(arg0 - 100); @u = sum(1); }`, Options{})
	for _, v := range []uint64{10, 20, 30} {
		b.run(0, v)
	}
	for _, row := range []struct {
		m, off int
		want   int64
	}{{0, CellCount, 3}, {1, CellCount, 3}, {1, CellTotal, 60}, {2, CellCount, 3}, {2, CellTotal, -240}, {3, CellTotal, 3}} {
		if got := int64(b.cell(row.m, row.off)); got != row.want {
			t.Errorf("map %s, word at %d: %d, want %d", b.script.Maps[row.m].Name, row.off, got, row.want)
		}
	}
	for i, signed := range []bool{false, false, true, true} {
		if b.script.Maps[i].Signed != signed {
			t.Errorf("%s signed: %v", b.script.Maps[i].Name, !signed)
		}
	}
}

func TestKeys(t *testing.T) {
	for _, row := range []struct{ body, want string }{
		{"@[arg0] = count()", "10=1 20=2"},
		{"@[(int8)arg0 - 15] = count()", "-5=1 5=2"},
		{"@[arg0 > 15] = count()", "0=1 1=2"},
		{"@[7] = count()", "7=3"},
		{"@[-1] = count()", "-1=3"},
		{"@[0x123456789abcdef0] = count()", "1311768467463790320=3"},
		{"@[arg0] = sum(arg0 + 1)", "10=1,11 20=2,42"},
		{"$k = arg0; @[$k] = sum($k)", "10=1,10 20=2,40"},
		{"@[arg0] = sum(-4)", "10=1,-4 20=2,-8"},
		{"@[arg0] = sum(0x123456789a)", "10=1,78187493530 20=2,156374987060"},
		{"$a=arg0;$b=$a;$c=$b;$d=$c;$e=$d; @[$e] = sum($a+$b+$c+$d+$e)", "10=1,50 20=2,200"},
		{"$a=arg0;$b=$a;$c=$b;$d=$c;$e=$d; @[$a+$b+$c+$d] = sum($e)", "40=1,10 80=2,40"},
		{"@[pid] = count()", "4711=3"},
	} {
		b := newBench(t, "uprobe:a:f { "+row.body+"; }", Options{})
		for _, v := range []uint64{10, 20, 20} {
			b.run(0, v)
		}
		if got := b.entries(0); got != row.want {
			t.Errorf("%s: got %s, want %s\n%s", row.body, got, row.want, b.script.Probes[0].Prog)
		}
	}
}

func TestSeveralKeyParts(t *testing.T) {
	s := mustCompile(t, "uprobe:a:f { @[arg0, (int8)arg1, arg2 > 1] = count(); @m[(1, 2)] = count() }", Options{})
	if k := s.Maps[0].Keys; len(k) != 3 || k[0] != uint64Type || k[1] != intType(1, true) || k[2] != boolType {
		t.Errorf("types of keys: %v", k)
	}
	if n := s.Maps[0].Spec.KeySize; n != 24 {
		t.Errorf("key of %d bytes", n)
	}
	if n := s.Maps[1].Spec.KeySize; n != 16 {
		t.Errorf("tuple as a key: %d bytes", n)
	}
}

// TestFullMap checks that a map without room loses only its own update.
func TestFullMap(t *testing.T) {
	b := newBench(t, `uprobe:a:f { @m[arg0] = count(); @n = count(); print(arg0) }`, Options{MaxMapKeys: 2})
	for i := range uint64(5) {
		if got := b.run(0, i); !strings.HasPrefix(got, "print ") {
			t.Errorf("run %d: %q", i, got)
		}
	}
	if got := b.cell(1, CellCount); got != 5 {
		t.Errorf("@n = %d", got)
	}
}

func TestParams(t *testing.T) {
	opts := Options{Params: []string{"42", "-7", "text", "0x10", "", "1m"}}
	for _, row := range []struct{ expr, want string }{
		{"$1", "42"}, {"$2", "-7"}, {"$3", "text"}, {"$4", "16"}, {"$5", "0"}, {"$6", "60000000000"}, {"$9", "0"}, {"$#", "6"},
		{"$1 + $2", "35"}, {"str($1)", "42"}, {"str($3)", "text"}, {"str($3, 2)", "te"}, {"str($9)", ""},
		{`str($3) == "text"`, "true"}, {"arg0 == $1", "false"},
	} {
		b := newBench(t, "uprobe:a:f { print("+row.expr+") }", opts)
		if got := b.run(0, 10); strings.TrimSpace(got) != strings.TrimSpace("print "+row.want) {
			t.Errorf("%s = %q, want %q", row.expr, got, row.want)
		}
	}
}
