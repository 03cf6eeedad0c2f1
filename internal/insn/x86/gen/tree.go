package main

import (
	"fmt"
	"strings"
)

// decisions are the facts a node can branch on, in the order they are tried,
// with their number of values. Those from byMod on need the ModRM byte, so they
// come last.
var decisions = []struct {
	name   string
	values int
}{
	{"byPrefix", 4}, {"byMode", 2}, {"byOpSize", 3}, {"byAddrSize", 3}, {"byRexB", 2}, {"byW", 2}, {"byL", 4},
	{"byMod", 2}, {"byReg", 8}, {"byRM", 8}, {"byBcast", 2},
}

// trees is the decision trees of all maps.
type trees struct {
	roots    map[string]map[int]uint16 // map → opcode → row or node
	nodes    []string
	children []uint16
	shared   map[string]uint16 // nodes by their contents
	index    map[*row]uint16
}

const nodeFlag = 0x8000

// buildTrees makes a tree for each map and opcode. Of several rows that apply,
// the first wins; a row that never applies is an error.
func buildTrees(f *file) (*trees, error) {
	t := &trees{roots: map[string]map[int]uint16{}, shared: map[string]uint16{}, index: map[*row]uint16{}}
	groups := map[string]map[int][]*row{}
	for n, r := range f.rows {
		t.index[r] = uint16(n + 1)
		if groups[r.tab] == nil {
			groups[r.tab] = map[int][]*row{}
		}
		for _, op := range r.opcodes {
			groups[r.tab][op] = append(groups[r.tab][op], r)
		}
	}
	for _, r := range f.rows { // in file order, so that the output is stable
		for _, op := range r.opcodes {
			if t.roots[r.tab] == nil {
				t.roots[r.tab] = map[int]uint16{}
			}
			if _, done := t.roots[r.tab][op]; !done {
				t.roots[r.tab][op] = t.build(groups[r.tab][op], 0)
			}
		}
	}
	for _, r := range f.rows {
		if !r.reached {
			return nil, fmt.Errorf("%s: %s is hidden by earlier rows", r.where, r.name)
		}
	}
	return t, nil
}

// build makes the tree for rows, by the decisions from k on.
func (t *trees) build(rows []*row, k int) uint16 {
	if len(rows) == 0 {
		return 0
	}
	for k < len(decisions) && !anyRestricts(rows, decisions[k].name) {
		k++
	}
	if k == len(decisions) {
		rows[0].reached = true
		return t.index[rows[0]]
	}
	d := decisions[k]
	kids := make([]uint16, d.values)
	for v := range kids {
		var match []*row
		for _, r := range rows {
			if set, ok := r.conds[d.name]; !ok || set>>v&1 != 0 {
				match = append(match, r)
			}
		}
		kids[v] = t.build(match, k+1)
	}
	return t.node(d.name, kids)
}

func anyRestricts(rows []*row, by string) bool {
	for _, r := range rows {
		if _, ok := r.conds[by]; ok {
			return true
		}
	}
	return false
}

// node is the index of a node with these children, shared if it exists.
func (t *trees) node(by string, kids []uint16) uint16 {
	same := true
	for _, c := range kids {
		same = same && c == kids[0]
	}
	if same {
		return kids[0]
	}
	key := by + strings.Trim(fmt.Sprint(kids), "[]")
	if n, ok := t.shared[key]; ok {
		return n
	}
	n := uint16(len(t.nodes)) | nodeFlag
	t.nodes = append(t.nodes, fmt.Sprintf("{%s, %d}", by, len(t.children)))
	t.children = append(t.children, kids...)
	t.shared[key] = n
	return n
}
