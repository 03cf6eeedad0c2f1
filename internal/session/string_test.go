package session

import (
	"testing"
)

// TestStringsOfTheTarget reads the names of the variables that ls asks for
// (coreutils, src/ls.c) out of its memory.
func TestStringsOfTheTarget(t *testing.T) {
	_, s, r := launchOutput(t, []string{"/bin/ls", "/"}, `uprobe:libc:getenv {
		@[str(arg0, 31), comm] = count();
		if (str(arg0) == "LS_BLOCK_SIZE") { printf("%s %s", comm, str(arg0)) }
		if (strncmp(str(arg0), "QUOTING", 7) == 0) { @quoting = count() }
		@bad[str(arg0 - arg0)] = count();
	}`)
	names := map[string]string{}
	for i := range s.config.Script.Maps {
		m := &s.config.Script.Maps[i]
		for _, e := range r.maps[m.Name] {
			parts := m.KeyParts(e.Key)
			if m.Name == "@" {
				names[parts[0].Str] = parts[1].Str
			} else if m.Name == "@bad" && parts[0].Str != "" {
				t.Errorf("a bad pointer points to %q", parts[0].Str)
			}
		}
	}
	for _, name := range []string{"POSIXLY_CORRECT", "LS_BLOCK_SIZE", "QUOTING_STYLE"} {
		if names[name] != "ls" {
			t.Errorf("%s was asked for by %q; all: %v", name, names[name], names)
		}
	}
	if len(r.values) != 1 || r.values[0][0].Str != "ls" || r.values[0][1].Str != "LS_BLOCK_SIZE" {
		t.Errorf("printed %v", r.values)
	}
	if q := r.maps["@quoting"]; len(q) != 1 || q[0].Value[0] == 0 {
		t.Errorf("names that begin with QUOTING: %v", q)
	}
}
