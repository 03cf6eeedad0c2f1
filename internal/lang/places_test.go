package lang

import "testing"

// TestProbeOfWildcard: a probe that uses its own name becomes one for each place.
func TestProbeOfWildcard(t *testing.T) {
	places := func(a *AttachPoint) []AttachPoint {
		if a.Full() != "uprobe:x:f*" {
			t.Errorf("asked for the places of %q", a.Full())
		}
		var all []AttachPoint
		for _, text := range []string{"uprobe:x:f1", "uprobe:x:f2"} {
			one, err := ParseAttach(text)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, one...)
		}
		return all
	}
	for _, c := range []struct {
		script string
		want   []string
	}{
		{`u:x:f* { print(probe); }`, []string{"uprobe:x:f1", "uprobe:x:f2"}},
		{`u:x:f* /probe == "uprobe:x:f2"/ { print(1); }`, []string{"uprobe:x:f1", "uprobe:x:f2"}},
		{`u:x:f*, u:x:g { print(probe); }`, []string{"uprobe:x:f1", "uprobe:x:f2", "u:x:g"}},
		{`u:x:f* { print(1); }`, []string{"u:x:f*"}},
		{`u:x:f* { print(probetype); }`, []string{"u:x:f*"}},
	} {
		s := mustCompile(t, c.script, Options{Places: places})
		var got []string
		for _, p := range s.Probes {
			for _, a := range p.Attach {
				got = append(got, a.Text)
			}
		}
		if len(got) != len(c.want) {
			t.Fatalf("%s: %q, want %q", c.script, got, c.want)
		}
		for i := range got {
			if got[i] != c.want[i] {
				t.Errorf("%s: %q, want %q", c.script, got, c.want)
			}
		}
	}
}
