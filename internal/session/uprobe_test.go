package session

import (
	"context"
	"errors"
	"testing"
	"time"

	"trapless/internal/kuprobe"
	"trapless/internal/lang"
	"trapless/internal/testkit"
)

// place is where the kernel finds a function of a process's program.
func place(t *testing.T, pid int, function string) kuprobe.Place {
	t.Helper()
	ms, err := readModules(pid, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer ms.Close()
	path := exe(t, pid)
	sites, err := ms.sites(&lang.AttachPoint{Path: path, Func: function})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range sites[0].module.image.Segments {
		if v := sites[0].fn.Start; s.Exec && v >= s.Addr {
			return kuprobe.Place{Path: path, Offset: uint64(v-s.Addr) + uint64(s.Off)}
		}
	}
	t.Fatalf("%s lies in no segment", function)
	return kuprobe.Place{}
}

// TestKernelUprobe puts a kernel uprobe on a probed function while a session is
// at work. When the kernel takes it out, it puts one byte of the original text
// back. By then the session must have gone.
func TestKernelUprobe(t *testing.T) {
	path := testkit.Copy(t, testkit.Compile(t, "busy.c", testkit.Exported))
	for _, function := range []string{"work_mov", "work_push", "work"} {
		p := testkit.StartBusy(t, path, 1)
		s, _ := attach(t, p.Pid(), "uprobe:"+exe(t, p.Pid())+":"+function+" { @ = count(); }")
		run(t, p, 1000, function, 1)
		k, err := kuprobe.AttachAll(place(t, p.Pid(), function))
		if errors.Is(err, kuprobe.ErrNotPermitted) || errors.Is(err, kuprobe.ErrUnsupported) {
			t.Skip(err)
		} else if err != nil {
			t.Fatal(err)
		}
		run(t, p, 1000, function, 1)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := s.Run(ctx); err != nil {
			t.Error(err)
		}
		if ctx.Err() != nil {
			t.Errorf("%s: the session did not notice the uprobe", function)
		}
		before, err := k.Count()
		if err != nil {
			t.Fatal(err)
		}
		run(t, p, 1000, function, 1)
		if after, err := k.Count(); err != nil || after-before != 1000 {
			t.Errorf("%s: the kernel counted %d of 1000 calls after the session, %v", function, after-before, err)
		}
		if err := k.Close(); err != nil {
			t.Error(err)
		}
		run(t, p, 1000, function, 1)
		if changes := testkit.TextChanges(t, p.Pid()); len(changes) != 0 {
			t.Errorf("%s: the text differs: %q", function, changes)
		}
	}
}
