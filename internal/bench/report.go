package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"text/tabwriter"
)

// Reference is the variant that others are compared with: a uprobe of the kernel on a push, which it
// emulates, as at the start of most functions.
const Reference = "uprobe-push"

// Report is what a run found out. Its JSON form is stable.
type Report struct {
	Machine Machine `json:"machine"`
	Rows    []Row   `json:"rows"`
	Skipped []Skip  `json:"skipped,omitempty"`
}

// Row is the cost of one variant: ns that a call takes longer because it is probed.
type Row struct {
	Name    string  `json:"name"`
	Threads int     `json:"threads"`
	NetNS   float64 `json:"net_ns"`  // the median of the rounds
	MinNS   float64 `json:"min_ns"`  // of the rounds
	MaxNS   float64 `json:"max_ns"`  //
	BaseNS  float64 `json:"base_ns"` // the median of the unprobed call with all around it
	Rounds  int     `json:"rounds"`
	XUprobe float64 `json:"x_uprobe_push,omitempty"` // how many times this cost is Reference's, with as many threads
	XTrace  float64 `json:"x_bpftrace,omitempty"`    // and bpftrace's for the same job
}

// Skip is a variant that could not be armed.
type Skip struct {
	Name    string `json:"name"`
	Threads int    `json:"threads"`
	Reason  string `json:"reason"`
}

// resolution is the least cost, in ns, that ratios are computed from: below, noise would decide.
const resolution = 0.1

func newReport(variants []Variant, samples [][]sample, reasons []error) *Report {
	r := &Report{Machine: ReadMachine()}
	for i, v := range variants {
		if reasons[i] != nil {
			r.Skipped = append(r.Skipped, Skip{v.Name, v.Threads, reasons[i].Error()})
			continue
		}
		r.Rows = append(r.Rows, newRow(&v, samples[i]))
	}
	r.compare()
	return r
}

// newRow reports a variant's samples, of which there is at least one.
func newRow(v *Variant, samples []sample) Row {
	var net, base []float64
	for _, s := range samples {
		net = append(net, s.probed-s.base)
		base = append(base, s.base)
	}
	return Row{
		Name: v.Name, Threads: v.Threads, Rounds: len(samples),
		NetNS: round(median(net)), MinNS: round(slices.Min(net)), MaxNS: round(slices.Max(net)), BaseNS: round(median(base)),
	}
}

// compare fills in the ratios, between rows of equally many threads.
func (r *Report) compare() {
	for i := range r.Rows {
		row := &r.Rows[i]
		for _, reference := range r.Rows {
			if reference.Threads != row.Threads {
				continue
			}
			times := round(reference.NetNS / max(row.NetNS, resolution))
			switch reference.Name {
			case Reference:
				row.XUprobe = times
			case BpftracePrefix + row.Name:
				row.XTrace = times
			}
		}
	}
}

// median is the middle value, or the mean of the two middle ones.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	if n%2 == 1 {
		return sorted[n/2]
	}
	return (sorted[n/2-1] + sorted[n/2]) / 2
}

// round keeps two digits behind the point: more would be noise.
func round(v float64) float64 { return math.Round(v*100) / 100 }

// WriteJSON writes the report as one JSON object.
func (r *Report) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// WriteText writes the report as a table for people.
func (r *Report) WriteText(w io.Writer) error {
	fmt.Fprintf(w, "%s\n\n", r.Machine)
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "variant\tthreads\tnet ns\tmin\tmax\tfaster than %s\tthan bpftrace\t\n", Reference)
	for _, row := range r.Rows {
		fmt.Fprintf(t, "%s\t%d\t%.2f\t%.2f\t%.2f\t%s\t%s\t\n", row.Name, row.Threads, row.NetNS, row.MinNS, row.MaxNS, times(row.XUprobe), times(row.XTrace))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w, "\nnet: CPU time by which a call is longer when it is probed; median, least and greatest of the rounds")
	for _, s := range r.Skipped {
		fmt.Fprintf(w, "skipped %s with %d threads: %s\n", s.Name, s.Threads, s.Reason)
	}
	return nil
}

func times(x float64) string {
	switch {
	case x == 0:
		return "-"
	case x < 10:
		return strconv.FormatFloat(x, 'g', 2, 64) + " x"
	}
	return strconv.FormatFloat(x, 'f', 0, 64) + " x"
}
