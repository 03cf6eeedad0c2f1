package saturation

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"trapless/internal/abi"
	"trapless/internal/elfplan"
	"trapless/internal/image"
	insn "trapless/internal/insn/x86"
	"trapless/internal/plan"
	"trapless/internal/proc"
)

// module is a file whose text a target has mapped, ready to be planned.
type module struct {
	path  string
	file  *os.File
	elf   *elfplan.Module
	funcs []*plan.Func
	facts *plan.Facts
	text  abi.Range // of all functions
}

// place is an address that does not depend on where a module lies.
type place struct {
	module string
	at     image.VAddr
}

// modules reads the mapped files whose base names match a pattern.
func modules(pid int, patterns []string) (out []*module, err error) {
	maps, err := proc.ReadMaps(pid)
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	for i := range maps {
		m := &maps[i]
		if m.Perm&proc.Exec == 0 || !m.File() || seen[m.Path] || !matches(m.Path, patterns) {
			continue
		}
		seen[m.Path] = true
		mod, err := load(pid, m)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%s: %w", m.Path, err), closeAll(out))
		}
		out = append(out, mod)
	}
	return out, nil
}

func matches(path string, patterns []string) bool {
	for _, p := range patterns {
		if ok, _ := filepath.Match(p, filepath.Base(path)); ok {
			return true
		}
	}
	return false
}

func closeAll(mods []*module) error {
	var errs []error
	for _, m := range mods {
		errs = append(errs, m.file.Close())
	}
	return errors.Join(errs...)
}

func load(pid int, m *proc.Mapping) (*module, error) {
	f, err := proc.OpenMapped(pid, m)
	if err != nil {
		return nil, err
	}
	mod := &module{path: m.Path, file: f}
	if err := mod.read(m); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return mod, nil
}

func (mod *module) read(m *proc.Mapping) error {
	st, err := mod.file.Stat()
	if err != nil {
		return err
	}
	im, err := image.New(mod.file, st.Size())
	if err != nil {
		return err
	}
	bias, err := im.BiasOf(m.Start, image.Offset(m.Offset), true)
	if err != nil {
		return err
	}
	funcs, err := im.Functions()
	if err != nil {
		return err
	}
	mod.elf = &elfplan.Module{Image: im, Funcs: funcs, Bias: bias}
	for _, fn := range funcs.All() {
		if fn.Len() == 0 {
			continue
		}
		f, err := mod.elf.Func(fn)
		if err != nil {
			return err
		}
		mod.funcs = append(mod.funcs, f)
	}
	if len(mod.funcs) == 0 {
		return errors.New("there are no functions")
	}
	if mod.funcs, err = mod.elf.Link(mod.funcs); err != nil {
		return err
	}
	mod.text.Start = mod.funcs[0].Start
	for _, f := range mod.funcs {
		mod.text.End = max(mod.text.End, f.End())
	}
	if err := mod.elf.FindEntries(mod.funcs); err != nil {
		return err
	}
	mod.facts, err = mod.elf.Facts()
	return err
}

// unprobed begins the names of functions that are left alone, to be compared with.
const unprobed = "unprobed_"

// leftAlone reports functions that are not probed. One of windows.c has a table
// behind its last instruction, and not all that is decoded there is code.
func (c choice) leftAlone(name string) bool {
	return strings.HasPrefix(name, unprobed) || !strings.HasPrefix(name, c.only) || name == "table_jump"
}

// unit is a function with what is planned of it.
type unit struct {
	*plan.Planner
	f       *plan.Func
	mod     *module
	sites   []abi.Addr
	windows []*plan.Window
	refused []*plan.Refusal
}

// plan plans the instructions of a choice, all of a function at once. A function
// may begin inside another one; its instructions are its own.
func (mod *module) plan(c choice) (units []*unit) {
	for i, f := range mod.funcs {
		if c.leftAlone(f.Name) {
			continue
		}
		u := &unit{f: f, mod: mod, Planner: plan.Prepare(f, mod.facts)}
		u.sites = u.Instructions(func(at abi.Addr, _ insn.Inst) bool {
			return (i+1 == len(mod.funcs) || at < mod.funcs[i+1].Start) && c.takes(mod.place(at))
		})
		if len(u.sites) > 0 {
			u.windows, u.refused = u.Together(u.sites)
			units = append(units, u)
		}
	}
	return units
}

// settle plans functions again that made room in the one behind them, where
// something else was planned.
func settle(units []*unit) {
	of := map[*plan.Func]*unit{}
	var all []*plan.Window
	for _, u := range units {
		of[u.f] = u
		all = append(all, u.windows...)
	}
	slices.SortFunc(all, func(x, y *plan.Window) int { return cmp.Compare(x.Start, y.Start) })
	for _, f := range plan.Conflicts(all) {
		if u := of[f]; u != nil {
			f.Next = nil
			u.windows, u.refused = plan.Analyze(f, u.sites, u.mod.facts)
		}
	}
}

// rooms are the sizes of the stacks at a window's sites, where they may be small.
func (mod *module) rooms(w *plan.Window) (rooms []int) {
	for _, s := range w.Sites {
		if room, small := mod.elf.Room(mod.elf.Bias.VAddr(s.Addr)); small {
			rooms = append(rooms, room)
		}
	}
	return rooms
}

func (mod *module) place(at abi.Addr) place {
	return place{filepath.Base(mod.path), mod.elf.Bias.VAddr(at)}
}
