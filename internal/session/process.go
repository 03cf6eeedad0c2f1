package session

import (
	"encoding/binary"
	"os"

	"trapless/internal/lang"
	"trapless/internal/proc"
)

// publishProcess tells programs what they ask of their process and cannot find out
// themselves. What of that changes is right within a second.
func (s *Session) publishProcess() {
	n, asked := s.config.Script.ProcessMap()
	if !asked {
		return
	}
	pid := s.PID
	if pid == 0 {
		pid = os.Getpid()
	}
	var words [lang.ProcessWords]uint64
	words[lang.ProcessCgroup] = proc.Cgroup(pid)
	words[lang.ProcessParent] = uint64(proc.Parent(pid))
	var value []byte
	for _, w := range words {
		value = binary.LittleEndian.AppendUint64(value, w)
	}
	if err := s.update(n, make([]byte, 4), value, 0); err != nil {
		s.config.Log("%v", err)
	}
}
