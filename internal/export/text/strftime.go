package text

import (
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"trapless/internal/unix"
)

// wallClock is the time of the day at a value of CLOCK_MONOTONIC.
func wallClock(ns uint64) time.Time { return time.Unix(0, int64(ns)+clockOffset()) }

var lastOffset atomic.Int64

// clockOffset is the time of the day minus CLOCK_MONOTONIC, in nanoseconds. It is
// measured each time, and stays what it was unless the clock was set, so that times have
// the distances that they had.
func clockOffset() int64 {
	now := time.Now().UnixNano() - int64(unix.Monotonic())
	if last := lastOffset.Load(); last != 0 && (time.Duration(now-last)).Abs() < 10*time.Millisecond {
		return last
	}
	lastOffset.Store(now)
	return now
}

// Strftime formats a time as strftime(3) does in the C locale. %f is the microsecond, as in bpftrace.
func Strftime(format string, t time.Time) string {
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i == len(format)-1 {
			b.WriteByte(format[i])
			continue
		}
		i++
		if c := format[i]; (c == 'E' || c == 'O') && i < len(format)-1 {
			i++ // other forms in other locales
		}
		b.WriteString(timeField(format[i], t))
	}
	return b.String()
}

// layouts are conversions that Go's layouts express.
var layouts = map[byte]string{
	'a': "Mon", 'A': "Monday", 'b': "Jan", 'B': "January", 'h': "Jan", 'd': "02", 'e': "_2", 'H': "15", 'I': "03",
	'm': "01", 'M': "04", 'p': "PM", 'S': "05", 'y': "06", 'Y': "2006", 'z': "-0700", 'Z': "MST", 'D': "01/02/06",
	'F': "2006-01-02", 'T': "15:04:05", 'X': "15:04:05", 'R': "15:04", 'r': "03:04:05 PM", 'x': "01/02/06",
	'c': "Mon Jan _2 15:04:05 2006", 'j': "002",
}

func timeField(c byte, t time.Time) string {
	if layout := layouts[c]; layout != "" {
		return t.Format(layout)
	}
	year, week := t.ISOWeek()
	days := int(t.Weekday())
	switch c {
	case 'f':
		return fmt.Sprintf("%06d", t.Nanosecond()/1000)
	case 's':
		return strconv.FormatInt(t.Unix(), 10)
	case 'n':
		return "\n"
	case 't':
		return "\t"
	case '%':
		return "%"
	case 'C':
		return fmt.Sprintf("%02d", t.Year()/100)
	case 'k':
		return fmt.Sprintf("%2d", t.Hour())
	case 'l':
		return fmt.Sprintf("%2d", (t.Hour()+11)%12+1)
	case 'P':
		return strings.ToLower(t.Format("PM"))
	case 'u':
		return strconv.Itoa((days+6)%7 + 1)
	case 'w':
		return strconv.Itoa(days)
	case 'G':
		return strconv.Itoa(year)
	case 'g':
		return fmt.Sprintf("%02d", year%100)
	case 'V':
		return fmt.Sprintf("%02d", week)
	case 'U':
		return fmt.Sprintf("%02d", (t.YearDay()+6-days)/7)
	case 'W':
		return fmt.Sprintf("%02d", (t.YearDay()+6-(days+6)%7)/7)
	}
	return "%" + string(c)
}
