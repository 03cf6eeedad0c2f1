package session

import (
	"testing"
	"time"
)

// TestManyArrivalsThatNobodyTakes: programs that are held do not wait for each other.
func TestManyArrivalsThatNobodyTakes(t *testing.T) {
	const many = 100
	w := &watcher{hold: true, arrivals: make(chan arrival)}
	let := 0
	var all []arrival
	for range many {
		all = append(all, arrival{1, func() { let++ }})
	}
	began := time.Now()
	w.pass(all)
	if took := time.Since(began); took > many*holdTime/2 {
		t.Errorf("%d programs were held for %v", many, took)
	}
	if let != many {
		t.Errorf("%d of %d programs were let go", let, many)
	}
}
