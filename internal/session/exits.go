package session

import (
	"fmt"

	"trapless/internal/plan"
)

// Exit is the reason of a refusal where a function is left in a way that a
// return probe cannot tell from others, or whose result is not known there.
const Exit plan.Reason = "exit"

// exits finds the sites of a return probe: the instructions by which the
// function of an entry site is left. A function that ends by calling another
// one (a tail call) is left there; what it returns is not known yet.
func (s *site) exits(retval bool) (sites []*site, refused []Refused, err error) {
	all, err := s.module.elf.Exits(s.fn)
	if err != nil {
		return nil, nil, err
	}
	for _, e := range all {
		at := s.module.site(e.Func, uint64(e.At-e.Func.Start))
		why := ""
		switch {
		case e.Kind == plan.TailJump && retval:
			why = "it ends by a jump to another function, so what it will return is not known there; probe it without retval, or probe the other function"
		case e.Kind == plan.TailBranch:
			why = "it ends by a jump to another function that is taken under a condition only"
		case e.Kind == plan.Unclear:
			why = "it is not known whether the jump there leaves the function"
		}
		if why != "" {
			refused = append(refused, Refused{at.name, Exit, why})
			continue
		}
		sites = append(sites, at)
	}
	if len(all) == 0 {
		refused = append(refused, Refused{s.name, Exit, fmt.Sprintf("it never returns: there is no return instruction in its %d bytes", s.fn.Len())})
	}
	return sites, refused, nil
}
