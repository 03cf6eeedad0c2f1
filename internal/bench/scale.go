package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"trapless/internal/bench/crowd"
)

// ScaleOptions ask for a measurement of many probes in one process.
type ScaleOptions struct {
	Probes  int
	Threads int // at work meanwhile
	Rounds  int // of timing; 0: 9
	// Arm counts calls of the functions of the program that a pattern names.
	Arm func(pid int, functions string) (ManyArmed, error)
	// Command is a program to be measured in place of the one that the package has, and Functions what is
	// probed there. Without a function of its own that is called at will there are no times of hits.
	PID       int
	Functions string
}

// ManyArmed are probes in place.
type ManyArmed struct {
	Sites  int
	Hits   func() (uint64, error)
	Pauses func() []time.Duration // for which the whole target was stopped, also after Disarm
	Disarm func() error
}

// ScaleReport is what a measurement of many probes found out. Its JSON form is stable.
type ScaleReport struct {
	Machine      Machine `json:"machine"`
	Probes       int     `json:"probes"` // that are in place
	Threads      int     `json:"threads"`
	RegisterMS   float64 `json:"register_ms"`   // from nothing to all in place, with reading the file's symbols and code
	UnregisterMS float64 `json:"unregister_ms"` // until all is restored
	Pauses       int     `json:"pauses"`
	MaxPauseMS   float64 `json:"max_pause_ms"`
	Memory       Memory  `json:"memory"`
	Calls        uint64  `json:"calls"` // made while all was in place, and counted
	// What a call takes with one probe, and with all of them in place; medians of rounds in turn. 0 for a
	// foreign process.
	OneNS   float64 `json:"one_ns"`
	ManyNS  float64 `json:"many_ns"`
	Percent float64 `json:"percent"` // ManyNS of OneNS
}

// Memory is what probes take in the target, in bytes.
type Memory struct {
	Code   uint64 `json:"code"`   // detours and handlers
	Data   uint64 `json:"data"`   // gates and tables
	Arena  uint64 `json:"arena"`  // journal, counters and maps
	Total  uint64 `json:"total"`  // of these
	Each   uint64 `json:"each"`   // Total for each probe
	Copies uint64 `json:"copies"` // of pages of text that are not shared with the file any more
}

// RunScale measures many probes in one process.
func RunScale(ctx context.Context, o ScaleOptions) (*ScaleReport, error) {
	if o.Rounds == 0 {
		o.Rounds = 9
	}
	r := &ScaleReport{Machine: ReadMachine(), Threads: o.Threads}
	if o.PID != 0 {
		return r, r.measure(&o, o.PID, o.Functions, func() error { return nil })
	}
	dir, err := os.MkdirTemp("", "trapless-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	program, err := crowd.Build(ctx, dir, o.Probes)
	if err != nil {
		return nil, err
	}
	many, err := crowd.Start(ctx, program, o.Threads)
	if err != nil {
		return nil, err
	}
	defer many.Kill()
	one, err := crowd.Start(ctx, program, 0)
	if err != nil {
		return nil, err
	}
	defer one.Kill()
	single, err := o.Arm(one.Pid(), crowd.One)
	if err != nil {
		return nil, err
	}
	err = r.measure(&o, many.Pid(), crowd.Functions, func() error { return r.time(one, many, o.Rounds) })
	if err = errors.Join(err, single.Disarm()); err != nil {
		return nil, err
	}
	_, err = many.Quit()
	return r, err
}

// measure registers, lets during run, and unregisters.
func (r *ScaleReport) measure(o *ScaleOptions, pid int, functions string, during func() error) error {
	before, err := readMemory(pid)
	if err != nil {
		return err
	}
	began := time.Now()
	armed, err := o.Arm(pid, functions)
	if err != nil {
		return err
	}
	r.RegisterMS, r.Probes = ms(time.Since(began)), armed.Sites
	time.Sleep(200 * time.Millisecond) // of work
	after, merr := readMemory(pid)
	err = errors.Join(merr, during())
	began = time.Now()
	err = errors.Join(err, armed.Disarm())
	r.UnregisterMS = ms(time.Since(began))
	r.Memory = after.since(before, armed.Sites)
	calls, herr := armed.Hits()
	pauses := armed.Pauses()
	r.Calls, r.Pauses = calls, len(pauses)
	if len(pauses) > 0 {
		r.MaxPauseMS = ms(slices.Max(pauses))
	}
	return errors.Join(err, herr)
}

// timeCalls is how many calls are timed at once.
const timeCalls = 10_000_000

// time times calls in two processes in turn, while the threads of both rest: those of many would take the
// processor and its caches from one.
func (r *ScaleReport) time(one, many *crowd.Process, rounds int) error {
	if err := many.Rest(true); err != nil {
		return err
	}
	var ones, manies []float64
	for range rounds {
		a, err := one.Time(timeCalls)
		if err != nil {
			return err
		}
		b, err := many.Time(timeCalls)
		if err != nil {
			return err
		}
		ones, manies = append(ones, a), append(manies, b)
	}
	r.OneNS, r.ManyNS = round(median(ones)), round(median(manies))
	r.Percent = round(100 * r.ManyNS / r.OneNS)
	return many.Rest(false)
}

func ms(d time.Duration) float64 { return round(float64(d.Microseconds()) / 1000) }

// readMemory sums up what the process has of memory that may be trapless's: private executable memory without a
// file, and arenas. Private data is all of it: see since.
func readMemory(pid int) (Memory, error) {
	var m Memory
	f, err := os.Open(fmt.Sprintf("/proc/%d/smaps", pid))
	if err != nil {
		return m, err
	}
	defer f.Close()
	var perms, path, where string
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) >= 5 && strings.Contains(fields[0], "-") {
			where, perms, path = fields[0], fields[1], strings.Join(fields[5:], " ")
			continue
		}
		if len(fields) < 2 || fields[0] != "Anonymous:" {
			continue
		}
		kb, _ := strconv.ParseUint(fields[1], 10, 64)
		switch {
		case strings.HasPrefix(path, "/memfd:trapless"):
			m.Arena += allocated(pid, where)
		case perms == "r-xp" && path == "":
			m.Code += kb << 10
		case perms == "r-xp":
			m.Copies += kb << 10
		case perms == "rw-p" && path == "" && beside(where):
			m.Data += kb << 10
		}
	}
	return m, nil
}

// beside reports whether a mapping lies where a C program has nothing of its own: below the libraries.
func beside(where string) bool {
	start, _, _ := strings.Cut(where, "-")
	at, err := strconv.ParseUint(start, 16, 64)
	return err == nil && at < 0x7f0000000000
}

// allocated is how many bytes a file has in memory that is mapped.
func allocated(pid int, where string) uint64 {
	st, err := os.Stat(filepath.Join("/proc", strconv.Itoa(pid), "map_files", where))
	if err != nil {
		return 0
	}
	return uint64(st.Sys().(*syscall.Stat_t).Blocks) * 512
}

func (m Memory) since(before Memory, probes int) Memory {
	d := Memory{Code: m.Code - before.Code, Data: m.Data - min(before.Data, m.Data), Arena: m.Arena - before.Arena, Copies: m.Copies - before.Copies}
	d.Total = d.Code + d.Data + d.Arena
	d.Each = d.Total / uint64(max(probes, 1))
	return d
}

// WriteJSON writes the report as one JSON object.
func (r *ScaleReport) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// WriteText writes the report for people.
func (r *ScaleReport) WriteText(w io.Writer) error {
	kb := func(n uint64) uint64 { return n >> 10 }
	fmt.Fprintf(w, "%s\n\n%d probes, %d threads\n", r.Machine, r.Probes, r.Threads)
	fmt.Fprintf(w, "registered in %.0f ms, removed in %.0f ms; %d pauses, at most %.2f ms\n", r.RegisterMS, r.UnregisterMS, r.Pauses, r.MaxPauseMS)
	fmt.Fprintf(w, "memory: %d KB (code %d, data %d, arena %d), %d bytes a probe; besides %d KB of text were copied\n",
		kb(r.Memory.Total), kb(r.Memory.Code), kb(r.Memory.Data), kb(r.Memory.Arena), r.Memory.Each, kb(r.Memory.Copies))
	_, err := fmt.Fprintf(w, "%d calls were counted\n", r.Calls)
	if r.OneNS > 0 {
		_, err = fmt.Fprintf(w, "a call takes %.2f ns with one probe and %.2f ns with all in place: %.0f %%\n", r.OneNS, r.ManyNS, r.Percent)
	}
	return err
}
