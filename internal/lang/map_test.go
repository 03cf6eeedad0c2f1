package lang

import "testing"

// TestPlainMaps runs statements twice, with arguments 10, 20 and 0.
func TestPlainMaps(t *testing.T) {
	for _, row := range []struct{ name, body, want, again string }{
		{"assign and read", "@x = arg0; print(@x + 0)", "print 10", "print 10"},
		{"keep", "print(@x + 0); @x += arg0", "print 0", "print 10"},
		{"keys", "@x[arg0] = arg1; @x[arg1] = 3; print(@x[arg0] + @x[arg1] + @x[5])", "print 23", "print 23"},
		{"long keys", "@x[arg0, 1] = arg1; print(@x[arg0, 1]); print(@x[arg0, 2])", "print 20; print 0", "print 20; print 0"},
		{"keys from maps", "@i = 4; @x[@i] = 7; @x[7] = 9; print(@x[@x[@i]])", "print 9", "print 9"},
		{"negative", "@x = -5; print(@x + 0); print(@x < 0)", "print -5; print true", "print -5; print true"},
		{"a literal takes the sign of later values", "@x = 1; @x = arg0 - 30; print(@x + 0)", "print -20", "print -20"},
		{"unsigned", "@x = arg2; @x--; print(@x + 0)", "print -1", "print -1"},
		{"increment", "@x++; @x++; print(@x + 0)", "print 2", "print 4"},
		{"decrement with a key", "@x[arg0]--; print(@x[arg0])", "print -1", "print -2"},
		{"value of an increment", "print(@x++); print(++@x); print(@x--); print(--@x)", "print 0; print 2; print 2; print 0", "print 0; print 2; print 2; print 0"},
		{"value of an increment with a key", "print(@x[1]++); print(++@x[1])", "print 0; print 2", "print 2; print 4"},
		{"twice in an expression", "print(@x++ + @x++ * 10)", "print 10", "print 32"},
		{"add", "@x += arg0; @x -= 3; print(@x + 0)", "print 7", "print 14"},
		{"add with a key", "@x[1] += arg0; @x[1] -= arg1; print(@x[1])", "print -10", "print -20"},
		{"other operators", "@x = 5; @x *= 3; @x <<= 2; @x |= 1; @x %= 50; print(@x + 0)", "print 11", "print 11"},
		{"other operators with a key", "@x[1] = 6; @x[1] /= 4; @x[1] ^= 3; print(@x[1])", "print 2", "print 2"},
		{"truth", "@x = arg0 > 1; print(!!@x); if (@x) { print(1) }", "print true; print 1", "print true; print 1"},
		{"condition", "if (@x) { print(@x + 0) } else { print(0) } @x = 3", "print 0", "print 3"},
		{"conditional", "@x = arg0; print(@x > 5 ? @x : arg1)", "print 10", "print 10"},
		{"delete", "@x[1] = 2; print(has_key(@x, 1)); print(delete(@x[1])); print(has_key(@x, 1)); print(@x[1]); print(delete(@x, 1))",
			"print true; print true; print false; print 0; print false", "print true; print true; print false; print 0; print false"},
		{"delete without a key", "@x = 2; delete(@x); print(@x + 0); @x++; print(delete(@x)); print(delete(@x))", "print 0; print true; print false", "print 0; print true; print false"},
		{"delete a pair", "@x[1, 2] = 3; delete(@x, (1, 2)); print(has_key(@x, (1, 2))); print(has_key(@x[3, 4]))", "print false; print false", "print false; print false"},
		{"revive", "@x[1] = 2; delete(@x[1]); @x[1]++; print(@x[1])", "print 1", "print 1"},
		{"variable from a map", "@x = 5; $a = @x; $b = @x + $a; print($b)", "print 10", "print 10"},
		{"key in an event", `@x[arg0] = 5; printf("%d %d", @x[10], arg1)`, "printf 5,20", "printf 5,20"},
		{"aggregate a value", "@start[tid] = nsecs; @lat = hist(nsecs - @start[tid]); print(nsecs - @start[tid] > 0); delete(@start[tid])", "print true", "print true"},
		{"time", "print(nsecs > 0); $a = nsecs; print(nsecs > $a); print(nsecs() > $a)", "print true; print true; print true", "print true; print true; print true"},
		{"who", "print(tid); print(pid); print(uid); print(gid); print(cpu); print(rand < 0x100000000)",
			"print 4712; print 4711; print 5; print 6; print 3; print true", "print 4712; print 4711; print 5; print 6; print 3; print true"},
		{"many", "$a = @b; @a = $a + @c + @e + @f; @b++; @c += @b; @k[@a] = @b; @e = @k[@a] + @f; @f = arg0; print(@a + @e)", "print 1", "print 25"},
		{"status", "@x = 3; exit(@x + 1)", "exit 4", "exit 4"},
	} {
		b := newBench(t, "uprobe:a:f { "+row.body+" }", Options{MaxMapKeys: 16})
		now := uint64(1000)
		b.machine.Now = func() uint64 { now += 5; return now }
		b.machine.TID, b.machine.UIDGID, b.machine.CPU = 4712, 6<<32|5, 3
		for i, want := range []string{row.want, row.again} {
			if got := b.run(0, 10, 20, 0); got != want {
				t.Errorf("%s, run %d: got %q, want %q\n%s", row.name, i, got, want, b.script.Probes[0].Prog)
			}
		}
	}
}

// TestStartIdiom: the predicate lets a return pass only after its entry.
func TestStartIdiom(t *testing.T) {
	b := newBench(t, `uprobe:a:f { @start[tid] = nsecs } uretprobe:a:f /@start[tid]/ { print(nsecs - @start[tid]); delete(@start[tid]) }`, Options{})
	now := uint64(0)
	b.machine.Now = func() uint64 { now += 7; return now }
	for i, want := range []string{"", "", "print 7", "", "", "print 7"} {
		if got := b.run([]int{1, 0, 1, 1, 0, 1}[i]); got != want {
			t.Errorf("step %d: %q, want %q", i, got, want)
		}
	}
}

// TestFullPlainMap: a map that is full takes no more keys, and what is there stays.
func TestFullPlainMap(t *testing.T) {
	b := newBench(t, "uprobe:a:f { @x[arg0]++; @y[arg0] = 1; print(@x[arg0]); print(@x[arg0]++) }", Options{MaxMapKeys: 4})
	for i := range uint64(8) {
		want := "print 1; print 1"
		if i >= 4 {
			want = "print 0; print 0"
		}
		if got := b.run(0, 100+i); got != want {
			t.Errorf("key %d: %q, want %q", i, got, want)
		}
	}
}
