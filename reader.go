package trapless

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"trapless/internal/arena"
	"trapless/internal/object"
)

// Record is a record of a ring.
type Record struct {
	RawSample []byte
	Slot      int    // of the thread that wrote it, where the kernel has the CPU
	TSC       uint64 // the time stamp counter when it was written
}

// Reader reads the records of one ring, in the order in which they were written. It
// stands for ringbuf.Reader and perf.Reader.
type Reader struct {
	q *queue

	// mu guards deadline.
	mu       sync.Mutex
	deadline time.Time
}

// NewReader reads a map of type RingBuf or PerfEventArray. What was written before is
// read, too. If nobody reads, records are dropped and counted once the ring's size,
// and at least a megabyte, is waiting.
func NewReader(m *Map) (*Reader, error) {
	q := m.coll.rings.queues[m.number]
	if q == nil {
		return nil, fmt.Errorf("map %s is no ring", m.Name)
	}
	return &Reader{q: q}, nil
}

// SetDeadline makes Read fail with os.ErrDeadlineExceeded from then on if nothing is
// there to be read; the zero time is never.
func (r *Reader) SetDeadline(t time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.deadline = t
}

// Read waits for the next record. It fails with os.ErrClosed when the reader was
// closed, or when the collection is at work no more and all was read.
func (r *Reader) Read() (Record, error) {
	r.mu.Lock()
	deadline := r.deadline
	r.mu.Unlock()
	var expired <-chan time.Time
	if !deadline.IsZero() {
		timer := time.NewTimer(time.Until(deadline))
		defer timer.Stop()
		expired = timer.C
	}
	for {
		rec, ok, changed := r.q.take()
		if ok {
			return rec, nil
		}
		if changed == nil {
			return Record{}, os.ErrClosed
		}
		select {
		case <-changed:
		case <-expired:
			return Record{}, os.ErrDeadlineExceeded
		}
	}
}

// Lost is how many records were dropped because nobody read them.
func (r *Reader) Lost() uint64 {
	r.q.mu.Lock()
	defer r.q.mu.Unlock()
	return r.q.lost
}

// Close ends Read.
func (r *Reader) Close() error {
	r.q.close()
	return nil
}

// queue is records that wait to be read.
type queue struct {
	// mu guards what follows.
	mu      sync.Mutex
	records []Record
	bytes   uint64
	most    uint64 // bytes
	lost    uint64
	changed chan struct{} // closed when there is something new; nil after the end
}

// leastQueue is how many bytes may wait at least.
const leastQueue = 1 << 20

func (q *queue) put(r Record) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.changed == nil || q.bytes+uint64(len(r.RawSample)) > q.most {
		q.lost++
		return
	}
	q.records, q.bytes = append(q.records, r), q.bytes+uint64(len(r.RawSample))
	close(q.changed)
	q.changed = make(chan struct{})
}

// take takes the first record. If there is none it says what to wait for, nil if
// none will come.
func (q *queue) take() (Record, bool, <-chan struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.records) == 0 {
		return Record{}, false, q.changed
	}
	r := q.records[0]
	q.records, q.bytes = q.records[1:], q.bytes-uint64(len(r.RawSample))
	return r, true, nil
}

func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.changed != nil {
		close(q.changed)
		q.changed = nil
	}
}

// ringSink takes what the programs of a collection write.
type ringSink struct {
	queues map[int]*queue // by the numbers of their maps
	print  io.Writer
}

func (s *ringSink) init(o *object.Object, print io.Writer) {
	s.queues, s.print = map[int]*queue{}, print
	for i := range o.Maps {
		if m := &o.Maps[i]; m.Ring() {
			s.queues[i] = &queue{most: max(m.Size, leastQueue), changed: make(chan struct{})}
		}
	}
}

// Record, Print and End are those of session.ObjectSink.
func (s *ringSink) Record(r arena.Record) error {
	if q := s.queues[r.Map]; q != nil {
		q.put(Record{RawSample: r.Payload, Slot: r.Slot, TSC: r.TSC})
	}
	return nil
}

func (s *ringSink) Print(text string) error {
	if s.print == nil {
		return nil
	}
	_, err := io.WriteString(s.print, text)
	return err
}

func (s *ringSink) End(func(int) []arena.Raw) error { return nil }

func (s *ringSink) close() {
	for _, q := range s.queues {
		q.close()
	}
}
