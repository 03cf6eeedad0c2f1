package bench

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"trapless/internal/tsc"
)

// Machine is where a measurement was made: figures of different machines do not compare.
type Machine struct {
	CPU        string `json:"cpu"`
	CPUs       int    `json:"cpus"` // that this process may use
	Kernel     string `json:"kernel"`
	Hypervisor bool   `json:"hypervisor"` // the CPU says that it is a virtual one
	Arch       string `json:"arch"`
	// TSC is what it takes to read the time stamp counter, in ns: every event pays for it once, a
	// latency twice, and a hypervisor that scales the counter makes it longer.
	TSC float64 `json:"tsc_ns"`
}

// ReadMachine looks at this machine. What cannot be read stays empty.
func ReadMachine() Machine {
	m := Machine{CPUs: runtime.NumCPU(), Arch: runtime.GOARCH, TSC: round(tscCost())}
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		m.readCPUInfo(string(text))
	}
	if text, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.Kernel = strings.TrimSpace(string(text))
	}
	return m
}

// tscCost is the time of one reading of the counter, the least of some tries.
func tscCost() float64 {
	const tries, readings = 50, 1000
	best := time.Duration(1 << 62)
	for range tries {
		begin := time.Now()
		for range readings {
			tsc.Counter()
		}
		best = min(best, time.Since(begin))
	}
	return float64(best) / readings
}

func (m *Machine) readCPUInfo(text string) {
	first, _, _ := strings.Cut(text, "\n\n") // the first CPU stands for all
	for line := range strings.Lines(first) {
		name, value, _ := strings.Cut(line, ":")
		switch strings.TrimSpace(name) {
		case "model name":
			m.CPU = strings.TrimSpace(value)
		case "flags":
			m.Hypervisor = slices.Contains(strings.Fields(value), "hypervisor")
		}
	}
}

// String is the machine on one line.
func (m Machine) String() string {
	s := fmt.Sprintf("%s, %d CPUs, Linux %s", m.CPU, m.CPUs, m.Kernel)
	if m.Hypervisor {
		s += ", virtual"
	}
	if m.TSC != 0 {
		s += fmt.Sprintf(", %.1f ns to read the time stamp counter", m.TSC)
	}
	return s
}
