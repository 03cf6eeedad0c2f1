package debuginfo

import (
	"debug/dwarf"
	"fmt"
	"strings"

	"trapless/internal/image"
)

// Signatures knows the parameters of the functions of a file as its source declares them.
type Signatures struct{ file *debugFile }

// OpenSignatures opens a file, whose path in the file system at root is name. dirs: see Find. Without debug
// information it is an error.
func OpenSignatures(root, name string, dirs ...string) (*Signatures, error) {
	f, err := New(root, nil, dirs...).tryOpen(name)
	if err != nil {
		return nil, err
	}
	return &Signatures{f}, nil
}

// Close closes the file.
func (s *Signatures) Close() { s.file.close() }

// Of are the parameters, as "int n", and the type of the result, "void" if there is none, of the function that begins at
// an address. It is false if they are not known.
func (s *Signatures) Of(at image.VAddr) (params []string, result string, ok bool) {
	var err error
	defer func() { ok = ok && err == nil }()
	defer caught(&err)
	fn, r, err := s.file.function(at)
	if err != nil || fn == nil {
		return nil, "", false
	}
	for last := fn.entry.Offset; fn.entry.Children; {
		e, err := r.Next()
		if err != nil || e == nil || e.Tag == 0 || e.Offset <= last {
			break
		}
		last = e.Offset
		if e.Tag == dwarf.TagFormalParameter {
			name, _ := fn.attribute(e, dwarf.AttrName).(string)
			params = append(params, strings.TrimSuffix(typeName(fn.dwarfType(e), 0)+" "+name, " "))
		}
		r.SkipChildren()
	}
	return params, typeName(fn.dwarfType(fn.entry), 0), true
}

// typeName is a type as C calls it.
func typeName(d dwarf.Type, depth int) string {
	if depth++; depth > maxDepth {
		return "..."
	}
	switch d := d.(type) {
	case nil:
		return "void"
	case *dwarf.PtrType:
		if f, ok := d.Type.(*dwarf.FuncType); ok {
			return typeName(f, depth)
		}
		return typeName(d.Type, depth) + "*"
	case *dwarf.QualType:
		if p, ok := d.Type.(*dwarf.PtrType); ok {
			return typeName(p, depth) + " " + d.Qual
		}
		return d.Qual + " " + typeName(d.Type, depth)
	case *dwarf.ArrayType:
		return fmt.Sprintf("%s[%d]", typeName(d.Type, depth), max(d.Count, 0))
	case *dwarf.StructType:
		return strings.Replace(d.Kind, "class", "struct", 1) + " " + named(d.StructName)
	case *dwarf.EnumType:
		return "enum " + named(d.EnumName)
	case *dwarf.FuncType:
		var params []string
		for _, p := range d.ParamType {
			params = append(params, typeName(p, depth))
		}
		return typeName(d.ReturnType, depth) + " (*)(" + strings.Join(params, ", ") + ")"
	}
	return d.String()
}

func named(name string) string {
	if name == "" {
		return "<unnamed>"
	}
	return name
}
