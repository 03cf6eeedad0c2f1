package session

import (
	"context"
	"errors"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
	"trapless/internal/bpf"
	"trapless/internal/inject"
	"trapless/internal/lang"
	"trapless/internal/proc"
)

// Libraries come and go while a session is at work. Probes in one that was unloaded
// are GONE: there is nothing to restore, and what is mapped there next is none of
// ours. They come back with it, wherever it is loaded then, and a library that a
// pattern names is probed when it is loaded for the first time.

// refresh compares the modules with what the target has mapped now. It reports
// whether there is something to apply.
func (r *registry) refresh() (bool, error) {
	maps, err := proc.ReadMaps(r.ms.pid)
	if err != nil {
		return false, err
	}
	r.ms.maps = maps
	var errs []error
	units := map[*module][]*unit{}
	for _, u := range r.units {
		units[u.mod] = append(units[u.mod], u)
	}
	for _, mod := range r.ms.loaded {
		if r.stands(mod) {
			errs = append(errs, r.renew(units[mod]))
		} else {
			errs = append(errs, r.unload(mod))
		}
	}
	for _, m := range r.ms.texts() {
		if r.ms.loaded[m.Start] == nil && !r.ms.known[mappedAs(m)] {
			errs = append(errs, r.arrive(m))
		}
	}
	r.ms.noteTexts()
	for u := range r.dirty {
		if !u.mod.gone {
			return true, errors.Join(errs...)
		}
	}
	return false, errors.Join(errs...)
}

// mapped is a text at its place.
type mapped struct {
	start abi.Addr
	text  inject.Text
}

func mappedAs(m *proc.Mapping) mapped { return mapped{m.Start, inject.TextOf(m)} }

// noteTexts notes what is mapped, so that it is looked at once only.
func (ms *modules) noteTexts() {
	ms.known = map[mapped]bool{}
	for _, m := range ms.texts() {
		ms.known[mappedAs(m)] = true
	}
}

// stands reports whether a module is still mapped where it was.
func (r *registry) stands(mod *module) bool {
	m := r.ms.maps.Find(mod.start)
	return m != nil && m.Start == mod.start && m.Perm&proc.Exec != 0 && inject.TextOf(m) == mod.text
}

// renew looks whether a module with these functions was unloaded and loaded again at
// the same place, and lets it be patched anew if so.
func (r *registry) renew(units []*unit) error {
	var all []*inject.Detour
	for _, u := range units {
		all = append(all, u.detours...)
		if len(all) > 0 && len(r.target.Reverted(all[:1])) == 0 {
			return nil // TextStands looks at all of them, in turn
		}
	}
	return r.reverted(r.target.Reverted(all))
}

// reverted lets functions be patched anew of which patches are not there any more.
func (r *registry) reverted(ds []*inject.Detour) error {
	if len(ds) == 0 {
		return nil
	}
	lost := map[*inject.Detour]bool{}
	for _, d := range ds {
		lost[d] = true
	}
	for _, u := range r.units {
		if slices.ContainsFunc(u.detours, func(d *inject.Detour) bool { return lost[d] }) {
			r.log("%s was loaded again", u.mod.path)
			r.dirty[u] = true
		}
	}
	return r.target.Forget(ds)
}

// units are the functions of a module that have sites.
func (mod *module) units(r *registry) (list []*unit) {
	for _, u := range r.units {
		if u.mod == mod {
			list = append(list, u)
		}
	}
	return list
}

// unload notes that a module is gone.
func (r *registry) unload(mod *module) error {
	r.log("%s was unloaded", mod.path)
	mod.gone = true
	delete(r.ms.loaded, mod.start)
	delete(r.ms.known, mapped{mod.start, mod.text})
	r.ms.gone = append(r.ms.gone, mod)
	var lost []*inject.Detour
	for _, u := range mod.units(r) {
		lost = append(lost, u.detours...)
		u.detours, u.windows, u.desc = nil, nil, nil
		for _, s := range u.named {
			s.detour, s.refusal = nil, nil
		}
		r.dirty[u] = true // when it comes back
	}
	r.planned = slices.DeleteFunc(r.planned, func(u *unit) bool { return u.mod == mod })
	return errors.Join(r.target.Forget(lost), r.target.ForgetSemaphores(r.semaphoresOf(mod)))
}

// arrive looks whether a mapping that is new is one that probes wait for.
func (r *registry) arrive(m *proc.Mapping) error {
	var mod *module
	for _, p := range r.patterns {
		match, err := r.ms.matcher(p.attach)
		if err != nil || !match(m) || r.has(p, m.Path) {
			continue
		}
		if mod == nil {
			if mod, err = r.comeBack(m); mod != nil || err != nil {
				return err // its probes know their places
			}
			if mod, err = r.ms.load(m); err != nil {
				r.log("%v", err)
				return nil
			}
			r.log("%s was loaded", mod.path)
		}
		sites, unclear, err := mod.ofKind(p.probe, p.attach)
		if isNone(err) {
			continue
		}
		if err != nil {
			return err
		}
		p.unclear = append(p.unclear, unclear...)
		r.tell(unclear)
		r.addSites(p, sites)
	}
	return nil
}

// has reports whether a pattern that names one file has found it already.
func (r *registry) has(p *pattern, file string) bool {
	if p.attach.PathWildcard {
		return false
	}
	return slices.ContainsFunc(r.probes, func(o *Probe) bool { return o.pattern == p && !o.site.module.gone })
}

// comeBack finds the module of a mapping among those that are gone. One whose file
// has changed since does not come back: its probes are dropped, and looked for anew.
func (r *registry) comeBack(m *proc.Mapping) (*module, error) {
	for i, mod := range r.ms.gone {
		if mod.path != m.Path {
			continue
		}
		same, err := mod.sameFile(r.ms.pid, m)
		if err != nil {
			return nil, err
		}
		r.ms.gone = slices.Delete(r.ms.gone, i, i+1)
		if !same {
			r.log("%s has changed", mod.path)
			r.remove(slices.DeleteFunc(slices.Clone(r.probes), func(p *Probe) bool { return p.site.module != mod }))
			for _, u := range mod.units(r) {
				delete(r.units, siteKey{mod, u.fn.Start})
				delete(r.dirty, u)
			}
			return nil, mod.close()
		}
		if err := mod.mappedAt(m); err != nil {
			return nil, err
		}
		r.log("%s was loaded again", mod.path)
		r.ms.loaded[mod.start] = mod
		for _, u := range mod.units(r) {
			u.rebase()
			r.dirty[u] = true
		}
		return mod, nil
	}
	return nil, nil
}

// sameFile reports whether a mapping is of the module's file, as it was read.
func (mod *module) sameFile(pid int, m *proc.Mapping) (bool, error) {
	f, err := proc.OpenMapped(pid, m)
	if err != nil {
		return false, err
	}
	defer f.Close()
	now, err := f.Stat()
	if err != nil {
		return false, err
	}
	return os.SameFile(mod.stat, now) && mod.stat.Size() == now.Size() && mod.stat.ModTime().Equal(now.ModTime()), nil
}

// rebase gives the sites the addresses that they have now.
func (u *unit) rebase() {
	named := map[abi.Addr]*site{}
	for _, s := range u.named {
		s.addr = u.mod.bias.Addr(s.at)
		named[s.addr] = s
	}
	u.named = named
}

// watchesLibraries reports whether a library may come or go that a pattern names:
// anything but the program itself, the C library and the dynamic loader.
func (r *registry) watchesLibraries() bool {
	exe, _ := proc.Exe(r.ms.pid) // an empty name is no module's
	for _, p := range r.patterns {
		switch base := path.Base(p.attach.Path); {
		case p.internal, p.attach.Path == "", p.attach.Path == exe:
		case p.attach.PathWildcard:
			return true
		case lang.IsLibrary(base, "libc"), lang.IsLibrary(base, "ld"), strings.HasPrefix(base, "ld-linux"):
		default:
			return true
		}
	}
	return false
}

// loaderEvents is the function that the dynamic loader calls when it has mapped or
// unmapped something, for debuggers (link.h, r_brk).
const loaderEvents = "_dl_debug_state"

// atBase is the entry of the auxiliary vector that says where the dynamic loader is
// (getauxval(3)).
const atBase = 7

// loaderMap counts the events of the dynamic loader. It comes behind the maps of
// the script.
var loaderMap = abi.MapSpec{Name: "(loader)", Kind: abi.PerSlotArray, KeySize: 4, ValueSize: 8, MaxEntries: 1}

// loaderProgram counts in map number n, the last one of these.
func loaderProgram(maps []abi.MapSpec) (*bpf.Verified, error) {
	return bpf.Verify(&bpf.Program{Name: "loader", Maps: maps, Insns: asm.Instructions{
		asm.StoreImm(asm.R10, -4, 0, asm.Word),
		bpf.LoadMap(asm.R1, len(maps)-1),
		asm.Mov.Reg(asm.R2, asm.R10),
		asm.Add.Imm(asm.R2, -4),
		bpf.Call(bpf.HelperMapCell),
		asm.JEq.Imm(asm.R0, 0, "out"),
		asm.Mov.Imm(asm.R1, 1),
		asm.AddAtomic.Mem(asm.R0, asm.R1, asm.DWord, 0),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("out"),
		asm.Return(),
	}})
}

// watchLoader registers a probe of ours at the dynamic loader, if probes may have to
// follow libraries, and if there is a loader that tells. Its hits say when to look
// at the mappings.
func (s *Session) watchLoader() error {
	r := s.registry
	if !r.watchesLibraries() && !s.usesStacks() {
		return nil
	}
	maps := append(s.config.Script.MapSpecs(), loaderMap)
	program, err := loaderProgram(maps)
	if err != nil {
		return err
	}
	s.watch = &loaderWatch{maps: maps}
	p := r.loaderPattern(program)
	if p == nil {
		return nil
	}
	if _, err := r.add([]*pattern{p}); err != nil {
		s.config.Log("libraries that are loaded and unloaded are noticed late: %v", err)
	}
	return nil
}

// loaderWatch is what is known of the dynamic loader's doings.
type loaderWatch struct {
	maps   []abi.MapSpec // of the arena, the loader's the last
	events uint64        // that were seen
}

// lookAtLibraries follows the libraries that were loaded and unloaded, if the loader
// has told of some, or if it is time for a look anyway.
func (s *Session) lookAtLibraries(anyway bool) error {
	if s.watch == nil {
		return nil
	}
	var events uint64
	for _, e := range s.arena.Entries(len(s.watch.maps) - 1) {
		events = e.Value[0]
	}
	if events == s.watch.events && !anyway {
		return nil
	}
	s.watch.events = events
	if err := s.readSymbols(); err != nil {
		return err
	}
	news, err := s.registry.refresh()
	if err == nil && news {
		err = s.apply(context.Background())
		s.registry.tell(s.refused)
	}
	return err
}

// loaderPattern is the probe at the dynamic loader, nil if there is none.
func (r *registry) loaderPattern(program *bpf.Verified) *pattern {
	aux, err := proc.Auxv(r.ms.pid)
	if err != nil || aux[atBase] == 0 {
		return nil
	}
	m := r.ms.maps.Find(abi.Addr(aux[atBase]))
	if m == nil || !m.File() {
		return nil
	}
	return &pattern{
		probe:    &lang.Probe{Kind: lang.Uprobe, Text: "the dynamic loader"},
		attach:   &lang.AttachPoint{Kind: lang.Uprobe, Path: m.Path, Func: loaderEvents, Text: m.Path + ":" + loaderEvents},
		program:  program,
		internal: true,
	}
}
