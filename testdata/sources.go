// Package testdata holds the sources of programs that are probed by tests and by
// 'trapless torture'.
package testdata

import "embed"

// Targets has the sources that 'trapless torture' compiles.
//
//go:embed targets/target.h targets/storm.c targets/signals.c targets/unwind.cpp targets/forker.c
//go:embed targets/executor.c targets/dl.c targets/dl_library.c targets/servers.c targets/blocking.c targets/states.c
//go:embed targets/threads.c targets/coroutines.c targets/many.c targets/handlers.c targets/goload.go
var Targets embed.FS
