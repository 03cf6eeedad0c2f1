package lang

import "strings"

// IsLibrary reports whether a file's name is that of a library in short: libc,
// or c, for libc.so.6 and libc-2.31.so.
func IsLibrary(base, short string) bool {
	for _, name := range []string{short, "lib" + short} {
		rest, ok := strings.CutPrefix(base, name)
		if ok && (rest == "" || strings.HasPrefix(rest, ".so") || strings.HasPrefix(rest, "-") && strings.Contains(rest, ".so")) {
			return true
		}
	}
	return false
}
