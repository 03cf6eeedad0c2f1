package proc

import (
	"math"
	"os"
	"strconv"
	"strings"
)

// Unlimited is the value of a limit that is not set.
const Unlimited = math.MaxUint64

// Limits are the soft resource limits (getrlimit(2)) that bound what can be
// mapped in a process.
type Limits struct {
	AddressSpace uint64 // RLIMIT_AS, bytes
	Stack        uint64 // RLIMIT_STACK, bytes
	Locked       uint64 // RLIMIT_MEMLOCK, bytes
	Files        uint64 // RLIMIT_NOFILE
}

// MapLimit is how many mappings a process may have (vm.max_map_count), the kernel's
// default if that cannot be read.
func MapLimit() int {
	const usual = 65530 // include/linux/mm.h, DEFAULT_MAX_MAP_COUNT
	b, err := os.ReadFile("/proc/sys/vm/max_map_count")
	if err != nil {
		return usual
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return usual
	}
	return n
}

// ReadLimits reads the limits of a process.
func ReadLimits(pid int) (Limits, error) {
	b, err := read(pid, Path(pid, "limits"))
	if err != nil {
		return Limits{}, err
	}
	return parseLimits(string(b)), nil
}

func parseLimits(text string) Limits {
	l := Limits{Unlimited, Unlimited, Unlimited, Unlimited}
	for line := range strings.Lines(text) {
		for name, to := range map[string]*uint64{
			"Max address space": &l.AddressSpace,
			"Max stack size":    &l.Stack,
			"Max locked memory": &l.Locked,
			"Max open files":    &l.Files,
		} {
			rest, ok := strings.CutPrefix(line, name)
			if f := strings.Fields(rest); ok && len(f) > 0 && f[0] != "unlimited" {
				*to, _ = strconv.ParseUint(f[0], 10, 64)
			}
		}
	}
	return l
}
