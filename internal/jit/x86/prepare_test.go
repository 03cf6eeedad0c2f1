package x86

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"trapless/internal/abi"
	asm "trapless/internal/asm/x86"
	"trapless/internal/bpf"
)

// TestPreparedSitesHaveTheSameCode emits pairs of sites as one detour has them, with
// what was kept of sites before and without.
func TestPreparedSitesHaveTheSameCode(t *testing.T) {
	h := newHarness(t, arenaNear, testConfig)
	r := rand.New(rand.NewPCG(7, 8))
	progs := []*bpf.Verified{count(t), keyed(t, mapKeyed), paired(t), verified(t, returnZero), event(t)}
	kept := new(Analyses)
	emit := func(keep *Analyses, lists [][]*bpf.Verified, sites []Site) []byte {
		env := *h.env
		env.Analyses = keep
		a := asm.New(entryBase)
		var detours []*Detour
		for i := range sites {
			d, err := Emit(a, lists[i], sites[i], &env)
			if err != nil {
				t.Fatal(err)
			}
			detours = append(detours, d)
		}
		for _, d := range detours {
			d.EmitCold(a)
		}
		code, err := a.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		return code
	}
	for range 2000 {
		var sites []Site
		var lists [][]*bpf.Verified
		for range 2 {
			site, list := randomSite(r), []*bpf.Verified(nil)
			for range r.IntN(shapePrograms + 2) {
				list = append(list, progs[r.IntN(len(progs))])
				site.Hits = append(site.Hits, r.IntN(100)-1)
			}
			site.Gate, site.Addr = codeBase+abi.Addr(r.IntN(1000)), entryBase+abi.Addr(r.IntN(1000))
			sites, lists = append(sites, site), append(lists, list)
		}
		if with, without := emit(kept, lists, sites), emit(nil, lists, sites); !bytes.Equal(with, without) {
			t.Fatalf("sites %+v:\n% x\nwithout:\n% x", sites, with, without)
		}
	}
	if n := len(kept.prepared); n == 0 || n > 3000 {
		t.Errorf("%d sites were prepared of 4000", n)
	}
}
