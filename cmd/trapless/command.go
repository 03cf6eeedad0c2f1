package main

import (
	"errors"
	"strings"
)

// splitCommand splits a command into words as a shell does: at white space,
// with '...', "..." and \. Nothing is expanded, so that what is started is the
// program itself and not a shell.
func splitCommand(s string) ([]string, error) {
	var words []string
	var word strings.Builder
	var quote rune
	started, escaped := false, false
	for _, c := range s {
		switch {
		case escaped:
			word.WriteRune(c)
			escaped = false
		case c == '\\' && quote != '\'':
			started, escaped = true, true
		case quote != 0:
			if c == quote {
				quote = 0
			} else {
				word.WriteRune(c)
			}
		case c == '\'' || c == '"':
			started, quote = true, c
		case c == ' ' || c == '\t' || c == '\n':
			if started {
				words = append(words, word.String())
				word.Reset()
				started = false
			}
		default:
			started = true
			word.WriteRune(c)
		}
	}
	if quote != 0 || escaped {
		return nil, errors.New("-c: a quote or a backslash is not closed")
	}
	if started {
		words = append(words, word.String())
	}
	if len(words) == 0 {
		return nil, errors.New("-c: no command")
	}
	return words, nil
}
