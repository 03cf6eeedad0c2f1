package unix

import (
	"fmt"
	"strings"
	"syscall"
)

// Strerror is the text of an error number as strerror(3) of glibc has it.
func Strerror(errno int) string {
	if errno == 0 {
		return "Success"
	}
	text := syscall.Errno(errno).Error() // those of glibc, with a small letter at the start
	if errno < 0 || strings.HasPrefix(text, "errno ") {
		return fmt.Sprintf("Unknown error %d", errno)
	}
	return strings.ToUpper(text[:1]) + text[1:]
}
