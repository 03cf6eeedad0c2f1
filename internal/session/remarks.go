package session

import (
	"fmt"
	"time"
)

// remarks are what programs have counted that went wrong, as far as it was told.
type remarks struct {
	told []uint64 // by remark
	next time.Time
}

// remarkTime is how often it is looked at.
const remarkTime = 100 * time.Millisecond

// tellRemarks tells what went wrong for the first time, and at the end how often if it did
// so again.
func (s *Session) tellRemarks(now time.Time, last bool) {
	script := s.config.Script
	i, any := script.RemarkMap()
	if !any || s.parent != nil || !last && now.Before(s.remarks.next) {
		return
	}
	s.remarks.next = now.Add(remarkTime)
	if s.remarks.told == nil {
		s.remarks.told = make([]uint64, len(script.Remarks))
	}
	for _, e := range s.all(i) {
		for n := range min(len(e.Value), len(script.Remarks)) {
			s.tellRemark(n, e.Value[n], last)
		}
	}
}

func (s *Session) tellRemark(n int, count uint64, last bool) {
	told := &s.remarks.told[n]
	report := s.config.Script.Remarks[n].Report(s.config.Script.Source)
	if count == *told || *told > 0 && !last {
		return
	}
	if *told = count; count > 1 {
		report.Text += fmt.Sprintf(" (%d times)", count)
	}
	s.check(s.config.Sink.Report(report))
}
