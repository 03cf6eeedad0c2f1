package bench

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
)

// Machine is where a measurement was made: figures of different machines do not compare.
type Machine struct {
	CPU        string `json:"cpu"`
	CPUs       int    `json:"cpus"` // that this process may use
	Kernel     string `json:"kernel"`
	Hypervisor bool   `json:"hypervisor"` // the CPU says that it is a virtual one
	Arch       string `json:"arch"`
}

// ReadMachine looks at this machine. What cannot be read stays empty.
func ReadMachine() Machine {
	m := Machine{CPUs: runtime.NumCPU(), Arch: runtime.GOARCH}
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		m.readCPUInfo(string(text))
	}
	if text, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.Kernel = strings.TrimSpace(string(text))
	}
	return m
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
	return s
}
