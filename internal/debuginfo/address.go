package debuginfo

import (
	"fmt"
	"os"

	"trapless/internal/image"
	"trapless/internal/lang"
)

// openImage opens a file with all its symbols.
func (s *Source) openImage(name string) (*image.File, func(), error) {
	file, err := os.Open(s.root + name)
	if err != nil {
		return nil, nil, err
	}
	st, err := file.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = fmt.Errorf("%s is no file", name)
	}
	var img *image.File
	if err == nil {
		img, err = image.New(file, st.Size())
	}
	if err != nil {
		file.Close()
		return nil, nil, err
	}
	separate := AddSymbols(s.root, name, img)
	return img, func() {
		file.Close()
		if separate != nil {
			separate.Close()
		}
	}, nil
}

// Address implements lang.TypeSource.
func (s *Source) Address(a *lang.AttachPoint, name string) (delta int64, size uint64, err error) {
	img, done, err := s.openImage(s.resolve(a))
	if err != nil {
		return 0, 0, err
	}
	defer done()
	fs, err := img.Functions()
	if err != nil {
		return 0, 0, err
	}
	found, err := fs.Lookup(a.Func)
	switch {
	case err != nil:
		return 0, 0, err
	case len(found) != 1 || found[0].Go:
		return 0, 0, fmt.Errorf("%s is not one function of C", a.Func)
	}
	at, size, ok := img.Address(name)
	if !ok {
		return 0, 0, fmt.Errorf("no symbol %s", name)
	}
	return int64(at - found[0].Start), size, nil
}
