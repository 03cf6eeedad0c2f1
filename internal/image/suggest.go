package image

import (
	"cmp"
	"slices"
	"strings"
)

const (
	suggestions = 3
	maxCompared = 128 // longer names are not compared
)

// suggest returns the names most like one that was not found, the nearest first: by edit distance, up to
// a quarter of the name's length, and then those that the name is the start of.
func (fs *Functions) suggest(name string) []string {
	if len(name) > maxCompared || name == "" {
		return nil
	}
	type candidate struct {
		name     string
		distance int
	}
	var best []candidate
	limit := max(2, len(name)/4)
	consider := func(s string) {
		if len(s) > maxCompared {
			return
		}
		d := editDistance(name, s, limit)
		if d > limit && strings.HasPrefix(s, name) {
			d = limit
		}
		c := candidate{s, d}
		if d > limit || slices.Contains(best, c) {
			return
		}
		best = append(best, c)
		slices.SortFunc(best, func(a, b candidate) int {
			return cmp.Or(cmp.Compare(a.distance, b.distance), cmp.Compare(len(a.name), len(b.name)), cmp.Compare(a.name, b.name))
		})
		best = best[:min(len(best), suggestions)]
	}
	for i := range fs.all {
		for _, s := range fs.all[i].Names {
			if mangled(s) && !mangled(name) {
				s = withoutParameters(s)
			}
			consider(s)
		}
	}
	names := make([]string, len(best))
	for i, c := range best {
		names[i] = c.name
	}
	return names
}

// editDistance is the number of insertions, deletions and substitutions that lead from a to b, or any
// number above limit if there are more than limit.
func editDistance(a, b string, limit int) int {
	if len(a)-len(b) > limit || len(b)-len(a) > limit {
		return limit + 1
	}
	var rows [2][maxCompared + 1]int
	last, row := &rows[0], &rows[1]
	for j := range len(b) + 1 {
		last[j] = j
	}
	for i := range len(a) {
		row[0] = i + 1
		least := row[0]
		for j := range len(b) {
			substitution := last[j]
			if a[i] != b[j] {
				substitution++
			}
			row[j+1] = min(substitution, last[j+1]+1, row[j]+1)
			least = min(least, row[j+1])
		}
		if least > limit {
			return limit + 1
		}
		last, row = row, last
	}
	return last[len(b)]
}
