package lang

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"trapless/internal/diag"
)

// diagnose compiles and returns "line:col: message" for each error, and hints
// in parentheses.
func diagnose(src string, opts Options) []string {
	_, err := Compile(src, "t", opts)
	var list diag.List
	if err != nil && !errors.As(err, &list) {
		return []string{"not a list: " + err.Error()}
	}
	return lines(list)
}

func lines(list diag.List) []string {
	var out []string
	for _, d := range list {
		p := d.Source.Pos(d.Span.Start)
		s := fmt.Sprintf("%d:%d: %s", p.Line, p.Col, d.Message)
		for _, h := range d.Hints {
			s += " (" + h + ")"
		}
		out = append(out, s)
	}
	return out
}

// errorRow is a script, or what stands between the braces of a uprobe, and the
// errors that it has. Columns of a body count from the body's start.
type errorRow struct {
	src  string
	want []string
}

func TestBodyErrors(t *testing.T) {
	for _, row := range bodyErrors {
		checkErrors(t, "uprobe:a:f {\n"+row.src+"}", row.src, row.want, 1)
	}
}

// bodyErrors are bodies of probes with what is said of them.
var bodyErrors = []errorRow{
	// Syntax.
	{`$a = 1 +`, []string{"1:9: expected an expression, found '}'"}},
	{`$a = ;`, []string{"1:6: expected an expression, found ';'"}},
	{`$a = = 3`, []string{"1:6: expected an expression, found '=' ('==' compares)"}},
	{`print((1 + 2)`, []string{"1:14: expected ')', found '}'"}},
	{`@[1 = count()`, []string{"1:5: expected ']', found '='"}},
	{`$a = 1 $b = 2`, []string{"1:7: expected ';' after the statement"}},
	{"print(1)\nprint(2)", []string{"1:9: expected ';' after the statement"}},
	{`print(1) 2`, []string{"1:9: expected ';' after the statement, found '2'"}},
	{`if (arg0 { }`, []string{"1:10: expected ')', found '{'"}},
	{`if (arg0) print(1)`, []string{"1:11: expected '{' after the condition, found 'print' (put parentheses around the whole condition)"}},
	{`if (arg0) == 1 { }`, []string{"1:11: expected '{' after the condition, found '==' (put parentheses around the whole condition)"}},
	{`if arg0 == 1 { }`, []string{"1:9: expected '{' after the condition, found '==' (put parentheses around the condition)"}},
	{`if (1) { } else print(1)`, []string{"1:17: expected '{' or if after else, found 'print'"}},
	{`1 ? 2`, []string{"1:6: expected ':', found '}'"}},
	{`$a`, []string{"1:1: Undefined or undeclared variable: $a (a variable exists from its first assignment to the end of the block around it)"}},
	{`$ a`, []string{"1:1: expected a name or a number after '$'"}},
	{`print(5x)`, []string{"1:7: invalid integer suffix 'x'"}},
	{`print(08)`, []string{"1:7: digit 8 or 9 in an octal integer (the leading 0 makes it octal)"}},
	{`print('a')`, []string{"1:7: the language has no character literals (write 97 for 'a')"}},
	{`print("a\q")`, []string{`1:9: unknown escape sequence`}},
	{`print("abc)`, []string{`1:7: unterminated string (close it with ")`}},
	{`let x = 5`, []string{"1:5: expected a variable after let, found 'x'"}},
	{`let @x = 5`, []string{"1:5: expected a variable after let, found '@x' (maps are declared outside of probes)"}},
	{`let $x: 5`, []string{"1:9: expected a type, found '5'"}},
	{`5 = $a`, []string{"1:1: invalid assignment target: only a variable or a map can be assigned to"}},
	{`$a = 5; $a + 1 = 3`, []string{"1:9: invalid assignment target: only a variable or a map can be assigned to"}},
	{`5++`, []string{"1:2: The ++ operator must be applied to a map or variable"}},
	{`--5`, []string{"1:1: The -- operator must be applied to a map or variable"}},
	{strings.Repeat("(", 300) + "1", []string{"1:100: nested too deeply, the limit is 200 levels"}},
	{"$a = 1" + strings.Repeat("+1", 3000), []string{"1:4007: expression is too long, the limit is 2000 operators"}},

	// Names.
	{`cuont()`, []string{"1:1: Unknown function: 'cuont' (did you mean count()?)"}},
	{`foo(1)`, []string{"1:1: Unknown function: 'foo'"}},
	{`print(foo)`, []string{"1:7: Unknown identifier: 'foo'"}},
	{`print(agr0)`, []string{"1:7: Unknown identifier: 'agr0' (did you mean arg0?)"}},
	{`$value = 1; print(value)`, []string{"1:19: Unknown identifier: 'value' (did you mean $value?)"}},
	{`$value = 1; print($vlaue)`, []string{"1:19: Undefined or undeclared variable: $vlaue (did you mean $value?)"}},
	{`if (1) { $a = 1 } print($a)`, []string{"1:25: Undefined or undeclared variable: $a (a variable exists from its first assignment to the end of the block around it)"}},
	{`$a += 1`, []string{"1:1: Undefined or undeclared variable: $a (a variable exists from its first assignment to the end of the block around it)"}},
	{`let $a = 1; let $a = 2`, []string{"1:17: Variable $a was already declared. Variable shadowing is not allowed."}},
	{`print(@x)`, []string{"1:7: Undefined map: @x (no probe assigns to it)"}},
	{`@total = count(); print(@totla)`, []string{"1:25: Undefined map: @totla (did you mean @total?)"}},
	{`print`, []string{"1:1: print is a function (call it: print(...))"}},
	{`arg0()`, []string{"1:1: arg0 is no function (write arg0)"}},
	{`print($0)`, []string{"1:7: parameters are numbered from $1"}},
	{`(foo)arg0`, []string{"1:2: Cannot resolve unknown type \"foo\""}},
	{`(unit32)arg0`, []string{"1:2: Cannot resolve unknown type \"unit32\" (did you mean uint32?)"}},

	// Types.
	{`print(-"a")`, []string{"1:7: The - operator can not be used on expressions of type 'string'"}},
	{`print("a" + 1)`, []string{"1:11: The + operator can not be used on expressions of types string, int8"}},
	{`print(-(arg0 > 1))`, []string{"1:7: The - operator can not be used on expressions of type 'bool'"}},
	{`print((uint8)"a")`, []string{"1:7: Cannot cast from \"string\" to \"uint8\"; there is no such conversion"}},
	{`print(arg0 ? 1 : "a")`, []string{"1:7: Branches must return the same type or compatible types: have 'int8' and 'string'"}},
	{`if ("a") { }`, []string{"1:5: Invalid condition: string"}},
	{`return "a"`, []string{"1:8: Probe return values can only be integers. Found string"}},
	{`$a = 1; $a = arg0 > 1`, []string{"1:14: Type mismatch for $a: trying to assign value of type 'bool' when variable already has a type 'int8'"}},
	{`$a = true; $a++`, []string{"1:12: The ++ operator can not be used on expressions of type 'bool'"}},
	{`let $a: uint8 = 300`, []string{"1:17: 300 does not fit a uint8 (a cast, as in (uint8)300, cuts it)"}},
	{`let $a: uint16 = -1`, []string{"1:18: -1 does not fit a uint16 (a cast, as in (uint16)-1, cuts it)"}},
	{`let $a: int64 = 0xffffffffffffffff`, []string{"1:17: 18446744073709551615 does not fit an int64 (a cast, as in (int64)18446744073709551615, cuts it)"}},
	{`$a = print(1)`, []string{"1:6: print() has no value"}},
	{`print(printf("a"))`, []string{"1:7: printf() has no value"}},
	{`@m[print(1)] = count()`, []string{"1:4: print() has no value"}},

	// Constants.
	{`print(1 / 0)`, []string{"1:7: division by zero"}},
	{`print(1 << 64)`, []string{"1:7: a literal is shifted by 0 to 63 bits"}},
	{`print(1 << -1)`, []string{"1:7: a literal is shifted by 0 to 63 bits"}},
	{`print(0xffffffffffffffff + 1)`, []string{"1:7: the value of this expression does not fit 64 bits"}},
	{`print(0xffffffffffffffff * 2)`, []string{"1:7: the value of this expression does not fit 64 bits"}},
	{`print(-0xffffffffffffffff)`, []string{"1:7: the value of this expression does not fit 64 bits"}},
	{`print(-9223372036854775808 - 1)`, []string{"1:7: the value of this expression does not fit 64 bits"}},
	{`print(0xffffffffffffffff & -1)`, []string{"1:7: the value of this expression does not fit 64 bits"}},

	// Maps.
	{`@m = count(); @m = sum(1)`, []string{"1:15: Type mismatch for @m: trying to assign value of type 'sum_t' when map already has a type 'count_t'"}},
	{`@m = count(); @m[1] = count()`, []string{"1:15: @m used as a map with an explicit key (non-scalar map), previously used without an explicit key (scalar map)"}},
	{`@m[1] = count(); @m = count()`, []string{"1:18: @m used as a map without an explicit key (scalar map), previously used with an explicit key (non-scalar map)"}},
	{`@m[1] = count(); @m[1, 2] = count()`, []string{"1:21: Argument mismatch for @m: trying to access with arguments: '(int8,int8)' when map expects arguments: 'int8'"}},
	{`@m[1] = count(); @m[true] = count()`, []string{"1:21: Argument mismatch for @m: trying to access with arguments: 'bool' when map expects arguments: 'int8'"}},
	{`@m[1,2,3,4,5,6,7,8,9] = count()`, []string{"1:20: a key has at most 8 parts"}},
	{`count()`, []string{"1:1: count() must be assigned directly to a map (as in @name = count())"}},
	{`$a = count()`, []string{"1:6: count() must be assigned directly to a map (as in @name = count())"}},
	{`@m = count(;`, []string{"1:12: expected an expression, found ';'"}},
	{`@m = count(5)`, []string{"1:6: count() requires no arguments (1 provided)"}},
	{`@m = sum()`, []string{"1:6: sum() requires one argument (0 provided)"}},
	{`@m = sum("a")`, []string{"1:10: sum() only supports integer arguments (string provided)"}},
	{`@m = sum(arg0 > 1)`, []string{"1:10: sum() only supports integer arguments (bool provided)"}},
	{`print(retval)`, []string{"1:7: retval exists only in uretprobes"}},
	{`@m = 1; @m = count()`, []string{"1:9: Type mismatch for @m: trying to assign value of type 'count_t' when map already has a type 'int64'"}},
	{`@m = count(); @m = 1`, []string{"1:15: Type mismatch for @m: trying to assign a value when map already has a type 'count_t'"}},
	{`@m = count(); @m++`, []string{"1:15: Type mismatch for @m: trying to assign a value when map already has a type 'count_t'"}},
	{`@m = 1; @m = true`, []string{"1:14: Type mismatch for @m: trying to assign value of type 'bool' when map already has a type 'int64'"}},
	{`@m = true; @m++`, []string{"1:12: The ++ operator can not be used on expressions of type 'bool'"}},
	{`@m = true; @m += 1`, []string{"1:18: Type mismatch for @m: trying to assign value of type 'int64' when map already has a type 'bool'"}},
	{`@m[1] = 1; @m = 2`, []string{"1:12: @m used as a map without an explicit key (scalar map), previously used with an explicit key (non-scalar map)"}},
	{`@m = 1; print(@n)`, []string{"1:15: Undefined map: @n (no probe assigns to it)"}},
	{`@m = 1; print(@n + 1)`, []string{"1:15: Undefined map: @n (no probe assigns to it)"}},
	{`delete(5)`, []string{"1:8: delete() expects a map argument"}},
	{`@m[1] = 1; delete(@m[1], 2)`, []string{"1:26: delete() takes one key, and @m has one already"}},
	{`@m[1] = 1; delete(@m)`, []string{"1:19: @m used as a map without an explicit key (scalar map), previously used with an explicit key (non-scalar map)"}},
	{`@m[1] = min(1); delete(@m[1])`, []string{"1:17: not supported yet: delete() on a map that holds min() (clear(@m) removes all entries)"}},
	{`printf(str(arg0))`, []string{"1:8: the format is a string, this is a string"}},
	{`print(str("a" == "b"))`, nil},
	{`print(str(arg0 > 1))`, []string{"1:11: str() expects a string, integer or a pointer type as first argument (bool provided)"}},
	{`print(str(arg0, 0))`, []string{"1:17: a string has 1 to 2000 bytes, not 0"}},
	{`if (comm) { }`, []string{"1:5: Invalid condition: string"}},
	{`print(strncmp(comm, 5, 1))`, []string{"1:7: strncmp() only supports string arguments (string and int8 provided)"}},
	{`@m[comm, str(arg0, 60)] = count()`, []string{"1:1: the key has 80 bytes, the limit is 64 (str(pointer, length) takes shorter strings)"}},
	{`printf("%s%s%s", str(arg0, 1500), str(arg1, 1500), str(arg2, 1500))`, []string{
		"1:1: the event has 4520 bytes, the limit is 4080 (str(pointer, length) takes shorter strings)"}},
	{`@m = @m + 1`, []string{"1:6: Undefined map: @m (no probe assigns to it)"}},
	{`@m = avg()`, []string{"1:6: avg() requires one argument (0 provided)"}},
	{`@m = max("a")`, []string{"1:10: max() only supports integer arguments (string provided)"}},
	{`@m = min(1); @m = max(1)`, []string{"1:14: Type mismatch for @m: trying to assign value of type 'max_t' when map already has a type 'min_t'"}},
	{`@m = hist(1, 6)`, []string{"1:14: hist: bits 6 must be 0..5"}},
	{`@m = hist(1, arg0)`, []string{"1:14: the number of bits of hist() is an integer literal"}},
	{`@m = hist(1, 2); @m = hist(1)`, []string{"1:23: @m has other buckets"}},
	{`@m = lhist(1, 0, 10)`, []string{"1:6: lhist() requires 4 arguments (3 provided)"}},
	{`@m = lhist(1, -1, 10, 1)`, []string{"1:6: lhist: invalid min or max value (must be non-negative literal)"}},
	{`@m = lhist(1, 0, 10, 0)`, []string{"1:6: lhist() step must be >= 1 (0 provided)"}},
	{`@m = lhist(1, 10, 0, 1)`, []string{"1:6: lhist() min must be less than max (provided min 10 and max 0)"}},
	{`@m = lhist(1, 0, 10, 11)`, []string{"1:6: lhist() step is too large for the given range (provided step 11 for range 10)"}},
	{`@m = tseries(1, 1s)`, []string{"1:6: tseries() requires at least 3 arguments (2 provided)"}},
	{`@m = tseries(1, 0, 5)`, []string{"1:6: tseries() interval_ns must be >= 1"}},
	{`@m = tseries(1, 1s, 0)`, []string{"1:6: tseries() keeps 1 to 1000000 intervals, not 0"}},
	{`@m = tseries(1, 1s, 5, "stats")`, []string{"1:24: tseries() cannot aggregate by 'stats' (use avg, max, min or sum)"}},
	{`@m = tseries(1, 1s, 5); @m = tseries(1, 2s, 5)`, []string{"1:30: @m has other intervals, or another aggregation"}},
	{`@m = lhist(1, 0, 2000, 1)`, []string{"1:6: lhist() too many buckets, must be <= 1000 (would need 2000) (a larger step makes fewer)"}},
	{`@m = lhist(1, 0, arg0, 1)`, []string{"1:18: the largest value of lhist() is an integer literal"}},
	{`clear(5)`, []string{"1:7: clear() expects a map argument"}},
	{`@m[1] = count(); zero(@m[1])`, []string{"1:23: zero() takes a whole map (write zero(@m))"}},
	{`@m = count(); print(@m, arg0)`, []string{"1:25: the number of entries is an integer literal from 0 to 4294967295"}},
	{`@m = count(); print(@m, 1, -1)`, []string{"1:28: the divisor is an integer literal from 0 to 4294967295"}},
	{`print(1, 2)`, []string{"1:10: Non-map print() only takes 1 argument, 2 found"}},
	{`print()`, []string{"1:1: print() requires at least one argument (0 provided)"}},
	{`exit("a")`, []string{"1:6: exit() only supports integer arguments (string provided)"}},

	// printf.
	{`printf()`, []string{"1:1: printf() requires at least one argument (0 provided)"}},
	{`printf(5)`, []string{"1:8: the format is a string, this is an int8"}},
	{`printf("%d")`, []string{"1:1: not enough arguments for format string (0 supplied, 1 expected)"}},
	{`printf("a", 1, 2)`, []string{"1:13: too many arguments for format string (2 supplied, 0 expected)"}},
	{`printf("%d", "a")`, []string{"1:14: '%d' converts integers, this is a string"}},
	{`printf("%-8.3lf", 1)`, []string{"1:19: '%-8lf' is for floating-point values, this is an int8"}},
	{`printf("%r", 1)`, []string{"1:14: '%r' converts what buf() returns, this is an int8"}},
	{`printf("%*d", 1)`, []string{"1:8: not supported yet: '*' as the width of a conversion"}},
	{`printf("%n", 1)`, []string{"1:8: '%n' is not allowed"}},
	{`printf("%99999d", 1)`, []string{"1:8: the width of a conversion is at most 1024"}},
}

func checkErrors(t *testing.T, src, shown string, want []string, skip int) {
	t.Helper()
	got := diagnose(src, Options{})
	for i, g := range got {
		var line, col int
		var rest string
		if n, _ := fmt.Sscanf(g, "%d:%d:", &line, &col); n != 2 {
			t.Fatalf("unlocated: %s", g)
		}
		rest = g[strings.Index(g, ": "):]
		got[i] = fmt.Sprintf("%d:%d%s", line-skip, col, rest)
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("%.200s\ngot\n  %s\nwant\n  %s", shown, strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func TestUnsupportedIsNamed(t *testing.T) {
	for _, row := range []errorRow{
		{`@x = count(); print(@x + 1)`, []string{"1:21: not supported yet: reading a map that holds count() in a probe of the target (begin, end and interval probes can)"}},
		{`@x[1] = count(); for ($kv : @x) { }`, []string{"1:18: not supported yet: a loop over a map in a probe of the target (begin, end and interval probes can)"}},
		{`@x = hist(1); print(@x + 1)`, []string{"1:21: a map that holds hist() has no value to compute with (print(@x) prints it)"}},
		{`@x = count(); printf("%d", @x)`, []string{"1:28: not supported yet: reading a map that holds count() in a probe of the target (begin, end and interval probes can)"}},
		{`$a = 1; print(&$a)`, []string{"1:15: not supported yet: the address of a variable or map"}},
		{`print(arg6)`, []string{"1:7: not supported yet: arg6 (arg0 to arg5 are in registers, further ones on the stack)"}},
		{`print(sarg0)`, []string{"1:7: not supported yet: sarg0 (arg0 to arg5 are in registers, further ones on the stack)"}},
		{`print(dw_ustack(3))`, []string{"1:7: dw_ustack requires a target process (name one by -p, or start one by -c; ustack needs none, and unwinds by DWARF, too)"}},
		{`print(kstack)`, []string{"1:7: kstack is about the kernel, trapless probes user space only"}},
		{`print(kaddr("x"))`, []string{"1:7: Failed to resolve kernel symbol: x"}},
		{`pid(init)`, []string{"1:1: not supported yet: pid() with an argument"}},
	} {
		checkErrors(t, "uprobe:a:f {\n"+row.src+"}", row.src, row.want, 1)
	}
}

func TestScriptErrors(t *testing.T) {
	for _, row := range []errorRow{
		{"", []string{"1:1: the script has no probe (a probe is: uprobe:PATH:FUNCTION { statements })"}},
		{"// only a comment\n", []string{"2:1: the script has no probe (a probe is: uprobe:PATH:FUNCTION { statements })"}},
		{"/* open", []string{"1:1: comment without an end (close it with */)"}},
		{"{ print(1) }", []string{"1:1: expected a probe, as uprobe:PATH:FUNCTION or begin, found '{'"}},
		{"begin", []string{"1:6: expected '{', found the end of the script (a probe is: uprobe:PATH:FUNCTION /predicate/ { statements })"}},
		{"begin { print(1)", []string{"1:17: expected '}', found the end of the script"}},
		{"begin { } }", []string{"1:11: expected a probe, as uprobe:PATH:FUNCTION or begin, found '}'"}},
		{"begin, { }", []string(nil)},
		{"begin /1 { }", []string{"1:10: expected '/' to close the predicate, found '{'"}},
		{"begin /1/ print(1)", []string{"1:19: expected '/' to close the predicate, found the end of the script"}},
		{"uprobe:a:f / arg0 > / { }", []string{"1:21: expected an expression, found '/'"}},
		{"begin { arg0 }", []string{"1:9: arg0 exists only in uprobes"}},
		{"uprobe:a:f, end { print(arg0) }", []string{"1:25: arg0 exists only in uprobes"}},
		{"begin { $a = 1 } end { print($a) }", []string{"1:30: Undefined or undeclared variable: $a (a variable exists from its first assignment to the end of the block around it)"}},
		{"begin { $a = ; } end { $b = ; }", []string{"1:14: expected an expression, found ';'", "1:29: expected an expression, found ';'"}},

		// Other things at the top.
		{`import "x.bt"; begin { }`, []string{"1:1: not supported yet: import"}},
		{"config = { max_mapkeys=5 } begin { }", []string{"1:12: max_mapkeys: not a known configuration option (did you mean max_map_keys?)"}},
		{"config = { max_map_keys=0 } begin { }", []string{"1:12: max_map_keys: expecting a number from 1 to 16777216, got 0"}},
		{"config = { print_maps_on_exit=2 } begin { }", []string{"1:12: print_maps_on_exit: Invalid bool value: valid values are true, false, 1 or 0."}},
		{"config = { max_map_keys } begin { }", []string{"1:25: expected '=', found '}'"}},
		{"begin { } config = { max_map_keys=5 }", []string{"1:11: the config block must come before probes and map declarations"}},
		{"config = { print_maps_on_exit=maybe } begin { }", []string{"1:12: print_maps_on_exit: Invalid bool value: valid values are true, false, 1 or 0."}},
		{"let @a = foo(5); begin { }", []string{"1:10: Invalid bpf map type: foo (Valid map types: hash, lruhash, percpuhash, percpulruhash)"}},
		{"let @a = percpuhash(0); begin { }", []string{"1:1: a map has between 1 and 16777216 entries"}},
		{"let @a = percpuhash(1); let @a = percpuhash(2); begin { }", []string{"1:29: @a is declared twice"}},
		{"let $a = 1; begin { }", []string{"1:5: expected a map, found '$a' (outside of a probe, let declares a map: let @name = percpuhash(1000);)"}},
	} {
		checkErrors(t, row.src, row.src, row.want, 0)
	}
}

func TestLimits(t *testing.T) {
	var vars, events strings.Builder
	for i := range 70 {
		fmt.Fprintf(&vars, "$v%d = arg0 + %d; ", i, i)
	}
	for range 1200 {
		events.WriteString("print(arg0); ")
	}
	for _, row := range []errorRow{
		{"uprobe:a:f { " + vars.String() + "}", []string{"1:1: the probe needs 528 bytes of stack, there are 512 (use fewer variables, or shorter strings, keys and events)"}},
		{"uprobe:a:f { " + events.String() + "}", []string{"1:1: the probe makes 10802 instructions, the limit is 4096"}},
		{`uprobe:a:f { printf("` + strings.Repeat("%d", 520) + `"` + strings.Repeat(", arg0", 520) + ") }",
			[]string{"1:14: the event has 4168 bytes, the limit is 4080 (str(pointer, length) takes shorter strings)"}},
		{strings.Repeat(" ", MaxSource) + "begin { }", []string{"1:1: the script has 1048585 bytes, the limit is 1048576"}},
	} {
		checkErrors(t, row.src, row.src, row.want, 0)
	}
}

func TestErrorsAreNotWithoutEnd(t *testing.T) {
	if n := len(diagnose("begin { "+strings.Repeat("foo(); ", 1000)+"}", Options{})); n != maxErrors {
		t.Errorf("%d errors", n)
	}
}

func TestWarnings(t *testing.T) {
	for _, row := range []errorRow{
		{`arg0;`, []string{"1:1: Return value discarded. (write '_ = ...' if that is meant)"}},
		{`pid();`, []string{"1:1: Return value discarded. (write '_ = ...' if that is meant)"}},
		{`let $a; print($a)`, []string{"1:15: Variable used before it was assigned: $a"}},
		{`print(arg0 / 0)`, []string{"1:14: division by zero"}},
		{`print(arg0 << 64)`, []string{"1:15: shift counts are taken modulo 64"}},
		{`print($1)`, []string{"1:7: Positional parameter $1 is empty or not provided."}},
		{`let $a: uint8 = arg0`, []string{"1:17: Expression of type: uint64 being cast to type: uint8. This may cause unexpected results. Use an explicit cast to suppress this warning."}},
		{`$a = arg0; $a = arg0 - 1`, []string{"1:6: Expression of type: uint64 being cast to type: int64. This may cause unexpected results. Use an explicit cast to suppress this warning."}},
		{`printf("100%\n")`, []string{"1:8: a '%' starts no conversion and is printed as it is (write %% for a '%')"}},
		{`_ = arg0; $a = 1; $a++; print($a)`, nil},
	} {
		s := mustCompile(t, "uprobe:a:f {\n"+row.src+"}", Options{})
		var want []string
		for _, w := range row.want {
			want = append(want, "2"+w[1:])
		}
		if got := lines(s.Warnings); strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Errorf("%s\ngot  %q\nwant %q", row.src, got, want)
		}
	}
}
