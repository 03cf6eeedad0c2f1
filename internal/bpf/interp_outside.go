package bpf

// What a tracer may do to the maps of an arena besides running programs. Threads of the target may use the
// map meanwhile.

// Update enters a value into map number i, as map_update_elem does, and reports whether there was room.
func (m *Machine) Update(i int, key, value []byte) bool {
	x := &run{Machine: m}
	return x.update(&m.Layout.Maps[i], key, value, 0) == 0
}

// Delete removes a key from map number i, as map_delete_elem does.
func (m *Machine) Delete(i int, key []byte) {
	x := &run{Machine: m}
	x.remove(&m.Layout.Maps[i], key)
}

// Add adds to a word of a value in map number i, by one instruction, and reports whether there was room for
// the key. A value that was not there is zero before.
func (m *Machine) Add(i int, key []byte, word int, delta uint64) bool {
	x := &run{Machine: m}
	ml := &m.Layout.Maps[i]
	pos, ok := x.lookup(ml, key)
	if !ok {
		x.update(ml, key, make([]byte, ml.ValueSize), bpfNoExist)
		if pos, ok = x.lookup(ml, key); !ok {
			return false
		}
	}
	addWord(m.Arena, x.valueAt(ml, pos)+uint64(8*word), delta)
	return true
}
