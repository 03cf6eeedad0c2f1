package elfplan

import (
	"slices"
	"strings"

	"trapless/internal/abi"
	insn "trapless/internal/insn/x86"
	"trapless/internal/plan"
)

// endNames are functions that do not return, under names that are reserved to
// the C and C++ implementations or have one meaning everywhere; and, behind
// the bar, under names that mean it only where another file defines them.
// Sources: the attributes noreturn in the headers of glibc 2.36, libstdc++ and
// libgcc of gcc 12; Rust's core::panicking; Go's runtime.
const endNames = `
abort exit _exit _Exit quick_exit __assert __assert_fail __assert_perror_fail __stack_chk_fail __stack_chk_fail_local
__fortify_fail __chk_fail __libc_fatal __libc_start_main longjmp _longjmp siglongjmp __longjmp __longjmp_chk
____longjmp_chk pthread_exit __pthread_exit thrd_exit __fentry_fail
_Unwind_Resume __cxa_throw __cxa_rethrow __cxa_bad_cast __cxa_bad_typeid __cxa_throw_bad_array_new_length
__cxa_throw_bad_array_length __cxa_call_unexpected __cxa_call_terminate __cxa_pure_virtual __cxa_deleted_virtual
__clang_call_terminate _ZSt9terminatev _ZSt10unexpectedv _ZSt21__glibcxx_assert_failPKciS0_S0_
rust_panic rust_begin_unwind
runtime.gopanic runtime.throw runtime.fatal runtime.fatalthrow runtime.panicdivide runtime.panicshift
runtime.panicoverflow runtime.panicmem runtime.panicwrap runtime.panicdottypeE runtime.panicdottypeI
runtime.panicnildottype runtime.panicIndex runtime.panicBounds runtime.abort runtime.goexit0 runtime.Goexit
| err errx verr verrx error_exit
`

// endPrefixes begin the names of more of them: std::__throw_*,
// core::panicking::*.
var endPrefixes = []string{"_ZSt16__throw_", "_ZSt17__throw_", "_ZSt18__throw_", "_ZSt19__throw_", "_ZSt20__throw_", "_ZSt21__throw_",
	"_ZSt22__throw_", "_ZSt23__throw_", "_ZSt24__throw_", "_ZSt25__throw_", "_ZSt26__throw_", "_ZN4core9panicking"}

// ends says of names what is known of them: true where they mean it everywhere.
var ends = func() map[string]bool {
	everywhere, imported, _ := strings.Cut(endNames, "|")
	known := map[string]bool{}
	for _, n := range strings.Fields(everywhere) {
		known[n] = true
	}
	for _, n := range strings.Fields(imported) {
		known[n] = false
	}
	return known
}()

// endsByName reports whether functions of a name do not return.
func endsByName(name string, imported bool) bool {
	if everywhere, ok := ends[name]; ok {
		return everywhere || imported
	}
	return strings.HasPrefix(name, "_Z") && slices.ContainsFunc(endPrefixes, func(p string) bool { return strings.HasPrefix(name, p) })
}

// noReturn finds the functions that do not return, by their names and by what
// compilers leave behind their calls: nothing.
func (m *Module) noReturn(s *plan.Sweep) ([]abi.Addr, error) {
	all := slices.Clone(s.NoReturn)
	for _, fn := range m.Funcs.All() {
		if slices.ContainsFunc(fn.Names, func(n string) bool { return endsByName(n, false) }) {
			all = append(all, m.Bias.Addr(fn.Start))
		}
	}
	imports, err := m.Image.Imports()
	if err != nil {
		return nil, err
	}
	slots := map[abi.Addr]bool{}
	for _, i := range imports {
		if endsByName(i.Name, true) {
			at := m.Bias.Addr(i.Slot)
			slots[at] = true
			all = append(all, at)
		}
	}
	for _, r := range m.Image.Stubs() {
		code, err := m.Image.Code(r.Range)
		if err != nil {
			continue // it is not loaded
		}
		all = append(all, stubsOf(m.Bias.Addr(r.Start), code, slots)...)
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// stubsOf are the stubs that jump through one of some slots: jmp *slot(%rip),
// with endbr64 before it or not.
func stubsOf(at abi.Addr, code []byte, slots map[abi.Addr]bool) []abi.Addr {
	var found []abi.Addr
	start := at
	for len(code) > 0 {
		in, err := insn.Decode(code, insn.Mode64)
		if err != nil {
			in.Len = 1
		}
		next := at + abi.Addr(in.Len)
		if err == nil && in.Branch == insn.BranchJmpInd && in.RIPRel() && slots[next+abi.Addr(int64(in.Disp))] {
			found = append(found, start)
		}
		if in.Mnemonic() != "endbr64" {
			start = next
		}
		at, code = next, code[in.Len:]
	}
	return found
}
