package main

import (
	"os"
	"runtime/debug"
)

// hurry has garbage collected seldom until the function that it returns is called.
// To put probes in place leaves much behind, and is over soon: 40,000 take a third
// less time. GOGC, if it is set, has its way.
func hurry() (calm func()) {
	if os.Getenv("GOGC") != "" {
		return func() {}
	}
	const percent = 400
	usual := debug.SetGCPercent(percent)
	return func() { debug.SetGCPercent(usual) }
}
