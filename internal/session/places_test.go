package session

import (
	"maps"
	"slices"
	"testing"

	"trapless/internal/testkit"
)

// TestStringsInAllPlaces reads strings from memory of every kind, in programs of both
// C libraries, also where memory that was there when the session started has gone.
func TestStringsInAllPlaces(t *testing.T) {
	for _, flags := range []testkit.Flags{testkit.PIE, testkit.NoPIE, testkit.Static, testkit.Musl, testkit.MuslStatic} {
		t.Run(flags.String(), func(t *testing.T) {
			p := testkit.Start(t, testkit.Compile(t, "places.c", flags))
			s, r := attach(t, p.Pid, "uprobe:"+exe(t, p.Pid)+":probed { @[str(arg0)] = count(); }")
			p.Ask("call")
			p.Ask("unmap")
			reads := s.Reads()
			finish(t, s)
			got := map[string]uint64{}
			for _, e := range r.maps["@"] {
				got[s.config.Script.Maps[0].KeyParts(e.Key)[0].Str] += e.Value[0]
			}
			want := map[string]uint64{"constant": 2, "data": 2, "bss": 2, "heap": 2, "stack": 2, "thread": 2, "edge": 1, "": 1}
			if !maps.Equal(got, want) {
				t.Errorf("read %v, want %v", got, want)
			}
			if reads.Direct < 6 || reads.Asked < 3 {
				t.Errorf("%+v: constants and data need no question, malloc's memory does", reads)
			}
			if last := p.Stop(); !slices.Contains(last, "ok") {
				t.Errorf("last lines %q", last)
			}
		})
	}
}
