package session

import (
	"fmt"
	"path"

	"trapless/internal/abi"
	"trapless/internal/debuginfo"
)

// frame is a frame of a stack as bpftrace prints it in a mode (lang.Type.Format). Code that was put into a function is a
// frame of its own, before that function's, where debug information tells of it.
func (y *symbols) frame(at abi.Addr, exact bool, mode string) []string {
	switch mode {
	case "raw":
		return []string{""}
	case "build_id":
		return []string{y.inFile(at)}
	}
	perf := mode == "perf"
	name := y.name(nameKey{addr: at, exact: exact, offset: true, module: perf})
	if !y.lines {
		return []string{name}
	}
	k := nameKey{addr: at, exact: exact}
	places, known := y.places[k]
	if !known {
		places = y.placesAt(at, exact)
		y.places[k] = places
	}
	if len(places) == 0 {
		return []string{name}
	}
	var out []string
	for _, p := range places[:len(places)-1] {
		if perf {
			out = append(out, p.Inlined+" (inlined)")
		} else {
			out = append(out, "[inlined] "+p.Inlined+line(p))
		}
	}
	if !perf {
		name += line(places[len(places)-1])
	}
	return append(out, name)
}

func line(p debuginfo.Place) string {
	if p.File == "" {
		return ""
	}
	return fmt.Sprintf("@%s:%d", path.Clean(p.File), p.Line)
}

// placesAt are the lines of source of an address; of a return address those of the call before it.
func (y *symbols) placesAt(at abi.Addr, exact bool) []debuginfo.Place {
	if !exact {
		at--
	}
	t := y.textAt(at)
	if t == nil || t.file.image == nil {
		return nil
	}
	if f := t.file; !f.placesTried {
		f.placesTried = true
		f.places = debuginfo.NewPlaces(f.root, f.path, f.image)
	}
	if t.file.places == nil {
		return nil
	}
	return t.file.places.At(t.bias.VAddr(at))
}

// inFile is the build id of the file that an address is in, and the offset there; without them the address.
func (y *symbols) inFile(at abi.Addr) string {
	t := y.textAt(at)
	if t == nil || t.file.image == nil || len(t.file.image.BuildID) == 0 {
		return fmt.Sprintf("%x", uint64(at))
	}
	return fmt.Sprintf("%x 0x%x", t.file.image.BuildID, t.offset+uint64(at-t.Start))
}
