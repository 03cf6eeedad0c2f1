package bpf

import (
	"encoding/binary"
	"testing"

	"trapless/internal/abi"
)

// A program sees the cookie of its attachment, and another one is not changed by it.
func TestWithCookie(t *testing.T) {
	v, err := Verify(textProgram(t, "cookie", `r6 = r1; call get_attach_cookie; *(u32 *)(r10 -4) = 3; r7 = r0; r1 = map array; r2 = r10; r2 += -4; call map_lookup_elem
		if r0 == 0 goto out; *(u64 *)(r0 +0) = r7; out: r0 = 0; exit`))
	if err != nil {
		t.Fatal(err)
	}
	l, err := abi.NewLayout(abi.Config{Maps: v.code.Maps})
	if err != nil {
		t.Fatal(err)
	}
	m := &Machine{Arena: make([]byte, l.Size), Layout: l}
	for _, cookie := range []uint64{1, 0, 1<<64 - 1, 0xdeadbeefcafe} {
		if err := m.Run(v.WithCookie(cookie), nil); err != nil {
			t.Fatal(err)
		}
		ml := &m.Layout.Maps[mapNumber(t, v.code.Maps, "array")]
		if got := binary.LittleEndian.Uint64(m.Arena[ml.Value(3):]); got != cookie {
			t.Errorf("the program sees %#x, its cookie is %#x", got, cookie)
		}
	}
}

func mapNumber(t *testing.T, maps []abi.MapSpec, name string) int {
	t.Helper()
	for i := range maps {
		if maps[i].Name == name {
			return i
		}
	}
	t.Fatalf("there is no map %s", name)
	return 0
}
