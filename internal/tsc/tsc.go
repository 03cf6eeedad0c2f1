// Package tsc reads the processor's time stamp counter, which programs in a
// target use as their clock (SDM volume 3, 18.17).
package tsc
