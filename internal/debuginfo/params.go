package debuginfo

import (
	"debug/dwarf"

	"trapless/internal/image"
	"trapless/internal/lang"
)

// Args implements lang.TypeSource. The parameters are those that the System V ABI passes in integer registers;
// what is passed in vector registers or in memory is left out. A function whose parameters are not where the ABI
// has them, because the compiler made a variant of it for itself, has none.
func (s *Source) Args(a *lang.AttachPoint) (args *lang.Layout, result lang.Type, ok bool) {
	f := s.fileOf(a)
	if f == nil || a.Wildcard || a.Func == "" || a.Offset != 0 {
		return nil, lang.Type{}, false
	}
	fs, err := f.functionTable()
	if err != nil {
		return nil, lang.Type{}, false
	}
	found, err := fs.Lookup(a.Func)
	if err != nil || len(found) == 0 || found[0].Go {
		return nil, lang.Type{}, false
	}
	args, result, err = f.parameters(found[0].Start)
	return args, result, err == nil && args != nil
}

// functionTable are the functions of the file.
func (f *debugFile) functionTable() (*image.Functions, error) {
	if f.functions == nil {
		fs, err := f.image.Functions()
		if err != nil {
			return nil, err
		}
		f.functions = fs
	}
	return f.functions, nil
}

// parameters are those of the function that begins at an address; nil without an error if nothing is known.
func (f *debugFile) parameters(at image.VAddr) (args *lang.Layout, result lang.Type, err error) {
	defer caught(&err)
	fn, r, err := f.function(at)
	if err != nil || fn == nil {
		return nil, result, err
	}
	return fn.read(r)
}

// function finds the function that begins at an address. The reader has passed its entry. It is nil without an error
// if it is not known.
func (f *debugFile) function(at image.VAddr) (*function, *dwarf.Reader, error) {
	r := f.main.data.Reader()
	unit, err := r.SeekPC(uint64(at))
	if err != nil {
		return nil, nil, err
	}
	p, base := f.main, baseOf(unit)
	if split := f.split(unit); split != nil {
		p, base, r = split, split.unit, split.data.Reader()
		if unit, err = r.Next(); err != nil || unit == nil {
			return nil, nil, err
		}
	}
	last := unit.Offset
	for {
		e, err := r.Next()
		if err != nil || e == nil || e.Tag == dwarf.TagCompileUnit || e.Tag != 0 && e.Offset <= last {
			return nil, nil, err
		}
		last = max(last, e.Offset) // a crafted file may lead back
		if e.Tag == dwarf.TagSubprogram {
			if low, ok := e.Val(dwarf.AttrLowpc).(uint64); ok && low == uint64(at) {
				return &function{part: p, entry: e, at: uint64(at), unit: base}, r, nil
			}
			r.SkipChildren()
		}
	}
}

// unitBase is what location lists of a unit are relative to.
type unitBase struct {
	low       uint64
	addrBase  int64
	listsBase int64 // of the lists that are named by numbers
}

func baseOf(unit *dwarf.Entry) unitBase {
	var b unitBase
	b.low, _ = unit.Val(dwarf.AttrLowpc).(uint64)
	b.addrBase, _ = unit.Val(dwarf.AttrAddrBase).(int64)
	b.listsBase, _ = unit.Val(dwarf.AttrLoclistsBase).(int64)
	return b
}

// function is a subprogram that is read.
type function struct {
	*part
	entry *dwarf.Entry
	at    uint64
	unit  unitBase
}

const ccNoCall = 5 // DW_CC_nocall: it is not called by the ABI's rules

// read reads the parameters, which are the children of the entry that the reader has passed.
func (fn *function) read(r *dwarf.Reader) (*lang.Layout, lang.Type, error) {
	if cc, _ := fn.entry.Val(dwarf.AttrCalling).(int64); cc == ccNoCall {
		return nil, lang.Type{}, nil
	}
	result := fn.typeOf(fn.entry)
	args := lang.NewLayout("struct args")
	var fields []lang.Field
	if passedInMemory(fn.dwarfType(fn.entry)) {
		fields = append(fields, lang.Field{Name: "", Type: bytesOf(8), Offset: 0}) // where the result is to be written
	}
	for last := fn.entry.Offset; fn.entry.Children; {
		e, err := r.Next()
		if err != nil {
			return nil, result, err
		}
		if e == nil || e.Tag == 0 || e.Offset <= last {
			break
		}
		last = e.Offset
		if e.Tag == dwarf.TagFormalParameter {
			ok := true
			if fields, ok = fn.add(fields, e); !ok {
				return nil, result, nil
			}
		}
		r.SkipChildren()
	}
	args.Define(fields, 8*len(fields), 8)
	return args, result, nil
}

// integerRegisters are those of the ABI for arguments, by their DWARF numbers.
var integerRegisters = []uint64{5, 4, 1, 2, 8, 9}

// add adds a parameter that is passed in the next integer register. It is false if the compiler passes it elsewhere.
func (fn *function) add(fields []lang.Field, e *dwarf.Entry) ([]lang.Field, bool) {
	d := fn.dwarfType(e)
	words := integerWords(d)
	if words == 0 || len(fields)+words > len(integerRegisters) {
		return fields, true
	}
	if reg, known := fn.entryRegister(e); known && reg != integerRegisters[len(fields)] {
		return nil, false
	}
	name, _ := fn.attribute(e, dwarf.AttrName).(string)
	fields = append(fields, lang.Field{Name: name, Type: fn.convert(d), Offset: 8 * len(fields)})
	for range words - 1 {
		fields = append(fields, lang.Field{Type: bytesOf(8), Offset: 8 * len(fields)})
	}
	return fields, true
}

// attribute is that of an entry, or of the abstract one that it is an instance of.
func (p *part) attribute(e *dwarf.Entry, attr dwarf.Attr) any {
	for range 4 {
		if v := e.Val(attr); v != nil {
			return v
		}
		origin, ok := e.Val(dwarf.AttrAbstractOrigin).(dwarf.Offset)
		if !ok {
			if origin, ok = e.Val(dwarf.AttrSpecification).(dwarf.Offset); !ok {
				return nil
			}
		}
		r := p.data.Reader()
		r.Seek(origin)
		next, err := r.Next()
		if err != nil || next == nil {
			return nil
		}
		e = next
	}
	return nil
}

// dwarfType is the type of an entry, nil for void.
func (fn *function) dwarfType(e *dwarf.Entry) dwarf.Type {
	at, ok := fn.attribute(e, dwarf.AttrType).(dwarf.Offset)
	if !ok {
		return nil
	}
	d, err := fn.data.Type(at)
	if err != nil {
		return nil
	}
	return d
}

func (fn *function) typeOf(e *dwarf.Entry) lang.Type { return fn.convert(fn.dwarfType(e)) }

// strip removes names and qualifiers.
func strip(d dwarf.Type) dwarf.Type {
	for range maxDepth {
		switch t := d.(type) {
		case *dwarf.TypedefType:
			d = t.Type
		case *dwarf.QualType:
			d = t.Type
		default:
			return d
		}
	}
	return nil
}

// integerWords is the number of integer registers that a parameter takes: 0 if it is passed otherwise (System V
// ABI for x86-64, 3.2.3). A struct of one or two words goes there if it has no floating point number in it.
func integerWords(d dwarf.Type) int {
	switch d := strip(d).(type) {
	case *dwarf.FloatType, *dwarf.ComplexType, nil:
		return 0
	case *dwarf.StructType:
		if d.ByteSize > 16 || d.ByteSize == 0 || d.Incomplete || hasFloat(d, 0) {
			return 0
		}
		return int(d.ByteSize+7) / 8
	}
	if size := strip(d).Size(); size > 8 {
		return int(size+7) / 8
	}
	return 1
}

func hasFloat(d dwarf.Type, depth int) bool {
	if depth++; depth > maxDepth {
		return true
	}
	switch d := strip(d).(type) {
	case *dwarf.FloatType, *dwarf.ComplexType:
		return true
	case *dwarf.ArrayType:
		return hasFloat(d.Type, depth)
	case *dwarf.StructType:
		for _, m := range d.Field {
			if hasFloat(m.Type, depth) {
				return true
			}
		}
	}
	return false
}

// passedInMemory reports whether a result is written to memory whose address is a hidden first argument.
func passedInMemory(d dwarf.Type) bool {
	s, ok := strip(d).(*dwarf.StructType)
	return ok && s.ByteSize > 16
}
