package tsc

// Counter is the time stamp counter.
func Counter() uint64
