package proc

import (
	"bufio"
	"os"
	"strconv"
	"strings"
)

// KernelSymbol is the address of a symbol of the kernel, as /proc/kallsyms has it: 0
// where kernel.kptr_restrict hides it. It is false for a name that the kernel does not
// have.
func KernelSymbol(name string) (uint64, bool) {
	f, err := os.Open("/proc/kallsyms")
	if err != nil {
		return 0, false
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); { // ADDRESS TYPE NAME [MODULE]
		fields := strings.Fields(lines.Text())
		if len(fields) < 3 || fields[2] != name {
			continue
		}
		n, err := strconv.ParseUint(fields[0], 16, 64)
		return n, err == nil
	}
	return 0, false
}
