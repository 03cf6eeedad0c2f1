package lang

import (
	"encoding/binary"
	"errors"
	"fmt"

	"trapless/internal/abi"
	"trapless/internal/bpf"
	"trapless/internal/diag"
)

// Script is a compiled script.
type Script struct {
	Source   *diag.Source
	Probes   []Probe
	Maps     []Map    // ordered by name; a map's number is its index
	Actions  []Action // an action's number is its index
	Warnings diag.List

	Settings

	Remarks []Remark // a remark's number is its index

	clock      string // Options.Clock
	scratch    int    // bytes of the threads' scratch memory
	scratchMap int    // the number of the map that it is
	process    int    // one more than the number of the map of processFacts, 0 if there is none
}

// Settings are what the config block says of a running session.
type Settings struct {
	// PrintMapsOnExit tells to print all maps at the end, print_maps_on_exit.
	PrintMapsOnExit bool
	// Missing says what becomes of places that are not there, missing_probes. A script
	// without any is an error.
	Missing MissingProbes
	// MaxCat is how many bytes cat() prints, max_cat_bytes.
	MaxCat int
	// Trailer is what is printed behind a string that was cut, str_trunc_trailer.
	Trailer string
	// Lines tells to print the lines of source of a stack's frames, show_debug_info.
	Lines bool
}

// MissingProbes is a value of the setting missing_probes.
type MissingProbes string

const (
	MissingError  MissingProbes = "error"
	MissingWarn   MissingProbes = "warn"
	MissingIgnore MissingProbes = "ignore"
)

// MapSpecs are the maps as an arena needs them, by number.
func (s *Script) MapSpecs() []abi.MapSpec {
	specs := make([]abi.MapSpec, len(s.Maps))
	for i := range s.Maps {
		specs[i] = s.Maps[i].Spec
	}
	return specs
}

// Probe is a program and the attach points of one kind that run it. An action
// block with attach points of several kinds makes a Probe for each kind, which
// share the program. Probes are in the order of the script.
type Probe struct {
	Kind   ProbeKind
	Attach []AttachPoint
	Prog   *bpf.Program
	Retval bool   // the program reads what the function returns
	Text   string // attach points as written
	Span   diag.Span
}

// InTarget reports whether the program runs in the target.
func (p *Probe) InTarget() bool { return p.Kind == Uprobe || p.Kind == Uretprobe || p.Kind == Usdt }

// Agg is how the values of a map come about.
type Agg uint8

const (
	// Count counts: a cell is a u64.
	Count Agg = iota + 1
	// Sum adds up: a cell is a u64, the number of values, and a u64 or s64,
	// their total.
	Sum
	// Avg and Stats have the cells of Sum.
	Avg
	Stats
	// Min and Max keep the extreme: a cell is a u64, the number of values, and
	// a u64 that Map.Extreme decodes.
	Min
	Max
	// Hist and LHist count values by their buckets: a cell is a u64 for each.
	Hist
	LHist
	// TSeries is a time series. The tracer keeps it: programs write a Record for
	// each value.
	TSeries
	// Plain is no aggregation: values are assigned. All threads share them. A
	// map without keys has two words, of which the first tells whether there is
	// a value.
	Plain
)

// String is the name of the function that the map is assigned.
func (a Agg) String() string {
	return [...]string{"none", "count", "sum", "avg", "stats", "min", "max", "hist", "lhist", "tseries", "plain"}[a]
}

// Offsets in the cells of a map, but for Hist and LHist.
const (
	CellCount   = 0 // the number of values
	CellTotal   = 8 // of Sum, Avg and Stats: their total
	CellExtreme = 8 // of Min and Max
)

// Map is a map of the script.
type Map struct {
	Name    string // with the '@'
	Spec    abi.MapSpec
	Agg     Agg
	Signed  bool    // the values are signed
	Type    Type    // of the values, if Plain
	Buckets Buckets // of Hist and LHist
	Keys    []Type  // of the parts of a key; empty for a map without keys
	Series  Series  // of TSeries
	Hidden  bool    // it is none of the script's, and is not printed

	Names func(*Value) // looks symbols and stacks up; nil leaves them numbers
}

// ActionKind says what an event asks the tracer to do.
type ActionKind uint8

const (
	// Printf prints Args by Format.
	Printf ActionKind = iota + 1
	// PrintValue prints Args[0] and a line end.
	PrintValue
	// PrintMap prints the last Top entries of Map, all if Top is 0, their
	// values divided by Div.
	PrintMap
	// Clear removes all entries of Map.
	Clear
	// Zero sets all values of Map to zero.
	Zero
	// Exit ends the session with the exit status Args[0].
	Exit
	// PrintEntry prints the entry of Map whose key is Args.
	PrintEntry
	// Errorf and Warnf print Args by Format, with Span, as an error or a warning.
	Errorf
	Warnf
	// Cat prints the file that Args by Format name.
	Cat
	// System runs the command that Args by Format make.
	System
	// PrintTime prints the time of the day by Text, a format of strftime.
	PrintTime
	// Join prints the strings Args, as many as are not empty up to the first one
	// that is, with Text between them, and a line end.
	Join
	// DeleteEntry removes the entry of Map whose key is Args.
	DeleteEntry
	// AddPoint adds a value to a time series of Map: Args are the value, when it was
	// measured, and the parts of the key.
	AddPoint
)

// String is the name of the function in the language.
func (k ActionKind) String() string {
	return [...]string{"none", "printf", "print", "print", "clear", "zero", "exit", "print", "errorf", "warnf", "cat", "system", "time", "join", "delete", "tseries"}[k]
}

// entry reports whether an action is about one entry, whose key Args are.
func (k ActionKind) entry() bool { return k == PrintEntry || k == DeleteEntry }

// Action describes one kind of event.
type Action struct {
	Kind     ActionKind
	Format   *Format // of Printf, Errorf, Warnf, Cat and System
	Text     string  // of PrintTime and Join
	Args     []Arg
	Map      int    // number of the map of PrintMap, PrintEntry, Clear, Zero, DeleteEntry and Record
	Top, Div uint32 // of PrintMap; Div is at least 1
	Span     diag.Span
	From     []diag.Span // where the macros stand that the call came from, the innermost first
}

// Arg is an argument of an action: a constant, or the next word of the event.
type Arg struct {
	Const   bool
	Trailer bool  // a string that fills its place was cut, and ".." shows it
	Value   Value // without its content unless Const
}

// ErrEvent wraps what is wrong with an event that no program of the script can
// have written.
var ErrEvent = errors.New("invalid event")

// Event reads the payload of a ring record. It takes nothing for granted: the
// ring may hold anything.
func (s *Script) Event(payload []byte) (*Action, []Value, error) {
	if len(payload) < 8 || len(payload)%8 != 0 {
		return nil, nil, fmt.Errorf("%w: %d bytes", ErrEvent, len(payload))
	}
	n := binary.LittleEndian.Uint64(payload)
	if n >= uint64(len(s.Actions)) {
		return nil, nil, fmt.Errorf("%w: action %d of %d", ErrEvent, n, len(s.Actions))
	}
	a, rest := &s.Actions[n], payload[8:]
	values := make([]Value, len(a.Args))
	for i, arg := range a.Args {
		values[i] = arg.Value
		if arg.Const {
			continue
		}
		n := 8 * arg.Value.Type.Words()
		if len(rest) < n {
			return nil, nil, fmt.Errorf("%w: too short for %s", ErrEvent, a.Kind)
		}
		values[i] = arg.Value.Type.Decode(rest[:n])
		if arg.Trailer && arg.Value.Type.Kind == String && len(values[i].Str) == n-1 {
			values[i].Str += s.Trailer
		}
		rest = rest[n:]
	}
	if len(rest) != 0 {
		return nil, nil, fmt.Errorf("%w: too long for %s", ErrEvent, a.Kind)
	}
	if a.Kind.entry() && len(values) == 1 && len(s.Maps[a.Map].Keys) > 1 { // the key is a tuple
		values = values[0].Elems
	}
	return a, values, nil
}
