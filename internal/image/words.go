package image

import "strings"

// words are parts of a pattern for demangled names that the mangled name of whatever fits has, too: identifiers
// stand in it as they are (Itanium C++ ABI, 5.1.2; Rust's v0 and legacy manglings). To look for them is some
// hundred times faster than to demangle. Without any, all names have to be demangled.
func words(pattern string) []string {
	if end := strings.IndexAny(pattern, "(<["); end >= 0 {
		pattern = pattern[:end] // types of parameters have names of their own
	}
	if strings.ContainsAny(pattern, " ~") || strings.Contains(pattern, "operator") {
		return nil
	}
	var out []string
	for _, word := range strings.FieldsFunc(pattern, func(r rune) bool {
		return r != '_' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	}) {
		if !abbreviated[word] && len(word) > 1 {
			out = append(out, word)
		}
	}
	return out
}

// abbreviated are words that a mangled name need not spell out: those of the standard library that have letters of
// their own, and those of built-in types and special names.
var abbreviated = func() map[string]bool {
	m := map[string]bool{}
	for _, w := range strings.Fields(`std allocator basic_string string basic_istream istream basic_ostream ostream basic_iostream
		iostream char_traits void bool char signed unsigned short int long float double wchar_t char8_t char16_t char32_t auto
		decltype const volatile vtable VTT typeinfo guard non virtual covariant construction TLS lambda unnamed anonymous
		namespace cold clone str i8 i16 i32 i64 i128 isize u8 u16 u32 u64 u128 usize f32 f64 closure shim impl as mut dyn`) {
		m[w] = true
		for i := 1; i < len(w); i++ { // a pattern may end in the middle of it
			m[w[:i]] = true
		}
	}
	return m
}()

// hasWords reports whether a mangled name has all words.
func hasWords(name string, words []string) bool {
	for _, w := range words {
		if !strings.Contains(name, w) {
			return false
		}
	}
	return true
}
