package control

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"trapless/internal/lang"
	"trapless/internal/session"
)

// Command is what a session can be asked for.
type Command string

// The commands.
const (
	Status     Command = "status"
	Enable     Command = "enable"
	Disable    Command = "disable"
	Arm        Command = "arm"
	Disarm     Command = "disarm"
	Optimize   Command = "optimize"
	Unoptimize Command = "unoptimize"
	Register   Command = "register"
	Unregister Command = "unregister"
)

// Request is what a session is asked.
type Request struct {
	Command Command `json:"command"`
	// Probes says which ones are meant (Enable, Disable, Unregister): numbers,
	// symbols with '*' for any characters, such a symbol after the name of its
	// file and a ':', or all.
	Probes []string `json:"probes,omitempty"`
	// Specs are what Register asks for.
	Specs []session.ProbeSpec `json:"specs,omitempty"`
}

// Answer is what a session says: its state after the command.
type Answer struct {
	Error     string              `json:"error,omitempty"` // in Ask's error, too
	PID       int                 `json:"pid"`
	Armed     bool                `json:"armed"`
	Optimized bool                `json:"optimization"`
	Probes    []session.ProbeInfo `json:"probes"`
	Reads     session.Reads       `json:"reads"`
}

// Times.
const (
	requestTime = 10 * time.Second // for a request to arrive
	answerTime  = time.Minute      // for the session to do it
	maxRequest  = 1 << 20          // bytes
)

// Server answers requests to a session, and to its members, each by the number of its
// own process.
type Server struct {
	session *session.Session

	// mu guards doors.
	mu    sync.Mutex
	doors map[int]*door // by process
}

// Serve starts to answer requests to a session, if it has a process, and to its members.
func Serve(s *session.Session) (*Server, error) {
	srv := &Server{session: s, doors: map[int]*door{}}
	if s.PID != 0 {
		if _, err := srv.open(s); err != nil {
			return nil, err
		}
	}
	s.Greet(func(m *session.Session) func() {
		leave, err := srv.open(m)
		if err != nil {
			return nil // it cannot be reached
		}
		return leave
	})
	return srv, nil
}

// Close ends it, and removes the sockets.
func (srv *Server) Close() {
	srv.session.Greet(nil)
	srv.mu.Lock()
	defer srv.mu.Unlock()
	for _, d := range srv.doors {
		d.close()
	}
	clear(srv.doors)
}

// open lets a session be asked. A process that has become another program is another
// session's.
func (srv *Server) open(s *session.Session) (leave func(), err error) {
	srv.mu.Lock()
	defer srv.mu.Unlock()
	if old := srv.doors[s.PID]; old != nil {
		old.close() // before there is another socket of that name
		delete(srv.doors, s.PID)
	}
	l, err := listen(s.PID)
	if err != nil {
		return nil, err
	}
	d := &door{session: s, l: l}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	d.done.Go(d.accept)
	srv.doors[s.PID] = d
	return func() { srv.shut(s.PID, d) }, nil
}

// shut closes a door, if it is still that of its process.
func (srv *Server) shut(pid int, d *door) {
	srv.mu.Lock()
	defer srv.mu.Unlock()
	if srv.doors[pid] == d {
		d.close()
		delete(srv.doors, pid)
	}
}

// door is where a session is asked.
type door struct {
	session *session.Session
	l       *net.UnixListener
	done    sync.WaitGroup
	ctx     context.Context
	cancel  context.CancelFunc
}

func (d *door) close() {
	d.cancel()
	d.l.Close()
	d.done.Wait()
}

func (d *door) accept() {
	for {
		c, err := d.l.AcceptUnix()
		if err != nil {
			return
		}
		d.done.Go(func() {
			stop := context.AfterFunc(d.ctx, func() { c.Close() })
			defer stop()
			defer c.Close()
			d.serve(c)
		})
	}
}

// serve answers one request.
func (d *door) serve(c *net.UnixConn) {
	if checkPeer(c) != nil || c.SetDeadline(time.Now().Add(requestTime)) != nil {
		return
	}
	line, err := bufio.NewReaderSize(&limited{c, maxRequest}, 4096).ReadBytes('\n')
	if err != nil {
		return
	}
	var rq Request
	err = json.Unmarshal(line, &rq)
	if err == nil {
		_ = c.SetDeadline(time.Now().Add(answerTime)) // it was set before
		ctx, cancel := context.WithTimeout(d.ctx, answerTime)
		err = d.do(ctx, &rq)
		cancel()
	}
	a := Answer{PID: d.session.PID, Probes: d.session.Probes(), Reads: d.session.Reads()}
	a.Armed, a.Optimized = d.session.Armed()
	if err != nil {
		a.Error = err.Error()
	}
	_ = json.NewEncoder(c).Encode(&a) // who asked may have gone
}

// limited is a reader of so many bytes.
type limited struct {
	c    net.Conn
	left int
}

func (l *limited) Read(p []byte) (int, error) {
	if l.left == 0 {
		return 0, errors.New("the request is too long")
	}
	n, err := l.c.Read(p[:min(len(p), l.left)])
	l.left -= n
	return n, err
}

func (d *door) do(ctx context.Context, rq *Request) error {
	s := d.session
	switch rq.Command {
	case Status:
		return nil
	case Arm, Disarm:
		return s.Arm(ctx, rq.Command == Arm)
	case Optimize, Unoptimize:
		return s.Optimize(ctx, rq.Command == Optimize)
	case Register:
		_, err := s.Register(ctx, rq.Specs...)
		return err
	case Enable, Disable, Unregister:
		ids, err := choose(s.Probes(), rq.Probes)
		if err != nil {
			return err
		}
		if rq.Command == Unregister {
			return s.Unregister(ctx, ids...)
		}
		return s.SetEnabled(rq.Command == Enable, ids...)
	}
	return fmt.Errorf("there is no command %q", rq.Command)
}

// choose finds the probes that are meant.
func choose(all []session.ProbeInfo, which []string) ([]int, error) {
	var ids []int
	for _, w := range which {
		var found []int
		for i := range all {
			if meant(&all[i], w) {
				found = append(found, all[i].ID)
			}
		}
		if found == nil {
			return nil, fmt.Errorf("%s: %w", w, session.ErrNoProbe)
		}
		ids = append(ids, found...)
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// meant reports whether a probe is among those that a word names.
func meant(p *session.ProbeInfo, word string) bool {
	if id, err := strconv.Atoi(word); err == nil {
		return p.ID == id
	}
	file, symbol := "", word
	if i := strings.LastIndexByte(word, ':'); i > 0 && word[i-1] != ':' { // C++ has ::
		file, symbol = word[:i], word[i+1:]
	}
	if file != "" && !match(file, path.Base(p.Module)) && file != p.Module {
		return false
	}
	return word == "all" || slices.ContainsFunc(append(p.Aliases, p.Symbol), func(name string) bool {
		if strings.Contains(symbol, "+") {
			name = fmt.Sprintf("%s+%d", name, p.Offset)
		}
		return match(symbol, name)
	})
}

// match compares with a pattern as attach points have them.
func match(pattern, s string) bool { return (&lang.AttachPoint{Func: pattern}).Match(s) }

// Ask asks the session of a process.
func Ask(ctx context.Context, pid int, rq *Request) (*Answer, error) {
	c, err := dial(pid)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	if err := c.SetDeadline(time.Now().Add(requestTime + answerTime)); err != nil {
		return nil, err
	}
	if err := json.NewEncoder(c).Encode(rq); err != nil {
		return nil, fmt.Errorf("process %d: asking its session: %w", pid, err)
	}
	var a Answer
	if err := json.NewDecoder(c).Decode(&a); err != nil {
		return nil, fmt.Errorf("process %d: its session ended before it answered: %w", pid, errors.Join(err, ctx.Err()))
	}
	if a.Error != "" {
		return &a, errors.New(a.Error)
	}
	return &a, nil
}
