package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"runtime"
)

// printInfo tells what there is on this system, and what of bpftrace's features trapless has, in the names
// of bpftrace's --info.
func printInfo(w io.Writer) error {
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, `System
  OS: Linux %s
  Arch: %s

Features, by bpftrace's names
  Loop support: yes
  send_signal: yes
  get_func_ip: yes
  get_ktime_ns: yes
  lookup_percpu_elem: yes
  bcc library path resolution: yes
  libdw (DWARF support): yes

About the kernel, which trapless does not probe
  probe_read_kernel: no
  btf: no
  fentry: no
  iter: no
  kprobe_multi: no
  kprobe_session: no
  uprobe_multi: no
  skboutput: no
  jiffies64: no
`, bytes.TrimSpace(release), runtime.GOARCH)
	return err
}
