package image

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	"trapless/internal/testkit"
)

func TestLookupAndMatchNames(t *testing.T) {
	fs := functions(t, open(t, testkit.Compile(t, "names.cpp")))
	for _, row := range []struct {
		pattern string
		want    string // demangled names, sorted
	}{
		{"_ZN4shop5priceEi", "shop::price(int)"},
		{"shop::price(int)", "shop::price(int)"},
		{"shop::price", "shop::price(int), shop::price(long)"},
		{"price", ""},
		{"*price*", "shop::price(int), shop::price(long)"},
		{"shop::pric?", "shop::price(int), shop::price(long)"},
		{"shop::price(?nt)", "shop::price(int)"},
		{"_ZN4shop5price*", "shop::price(int), shop::price(long)"},
		{"shop::Basket<int>::add", "shop::Basket<int>::add(int)"},
		{"shop::Basket<*>::add", "shop::Basket<int>::add(int)"},
		{"shop::(anonymous namespace)::hidden", "shop::(anonymous namespace)::hidden(int)"},
		{"operator+", "operator+(shop::Basket<int>, int)"},
		{"shop::till::count", "shop::till::count"},
		{"shop::receipt", "shop::receipt"},
		{"shop::r*", "shop::receipt"},
		{"shop::*t", "shop::receipt, shop::till::count"},
		{"main", "main"},
		{"mai?", "main"},
		{"*", "*"},
	} {
		var got []string
		matches := fs.Match(row.pattern)
		for _, m := range matches {
			got = append(got, m.Pretty())
		}
		slices.Sort(got)
		if row.want == "*" {
			entries := 0
			for _, fn := range fs.All() {
				if fn.Entry && len(fn.Names) > 0 {
					entries++
				}
			}
			if len(matches) != entries {
				t.Errorf("%q matches %d functions of %d with names", row.pattern, len(matches), entries)
			}
			continue
		}
		if strings.Join(got, ", ") != row.want {
			t.Errorf("match %q: %q, want %q", row.pattern, got, row.want)
		}
		if Wild(row.pattern) {
			continue
		}
		found, err := fs.Lookup(row.pattern)
		if (err == nil) != (row.want != "") || len(found) != len(got) {
			t.Errorf("lookup %q: %d functions, %v; match found %d", row.pattern, len(found), err, len(got))
		}
	}
}

// A wildcard finds a function once, whatever parts and aliases it has.
func TestMatchFindsEachFunctionOnce(t *testing.T) {
	fs := functions(t, open(t, testkit.Compile(t, "symbols.c")))
	for pattern, want := range map[string]int{"unlikely*": 1, "*original": 1, "*cold*": 0} {
		if got := fs.Match(pattern); len(got) != want {
			t.Errorf("%s: %d functions, want %d", pattern, len(got), want)
		}
	}
	// Named in full, a part can be had.
	if found, err := fs.Lookup("unlikely.cold"); err != nil || len(found) != 1 || found[0].Entry {
		t.Errorf("unlikely.cold: %v, %v; want a part", found, err)
	}
}

func TestChoicesAreRefused(t *testing.T) {
	fs := functions(t, open(t, testkit.Compile(t, "symbols.c")))
	var choice *IFuncError
	if _, err := fs.Lookup("chosen"); !errors.As(err, &choice) || !slices.Equal(choice.Implementations, []string{"chosen_fast"}) {
		t.Errorf("lookup chosen: %v, want a choice with chosen_fast", err)
	}
	if m := fs.Match("chose?"); len(m) != 1 || !m[0].IFunc {
		t.Errorf("match chose?: %+v, want one that is marked", m)
	}
}

// glibc on x86-64 has an old memcpy, a function, beside the one of today, a choice.
func TestDefaultVersionGoesFirst(t *testing.T) {
	const libc = "/lib/x86_64-linux-gnu/libc.so.6"
	if _, err := os.Stat(libc); err != nil {
		t.Skipf("needs %v", err)
	}
	fs := functions(t, open(t, libc))
	var choice *IFuncError
	if _, err := fs.Lookup("memcpy"); !errors.As(err, &choice) {
		t.Errorf("lookup memcpy: %v, want a choice", err)
	}
	old := "memcpy@GLIBC_2.2.5"
	if found, err := fs.Lookup(old); err != nil || len(found) != 1 || found[0].Symbol != old || found[0].IFunc {
		t.Errorf("lookup %s: %v, %v", old, found, err)
	}
	// Only an old version is left of this name of pthread_mutex_lock: the plain name finds it.
	today, err := fs.Lookup("pthread_mutex_lock")
	if err != nil {
		t.Fatal(err)
	}
	if found, err := fs.Lookup("__pthread_mutex_lock"); err != nil || len(found) != 1 || found[0].Start != today[0].Start {
		t.Errorf("lookup of a plain name: %v, %v", found, err)
	}
}

func TestSuggestions(t *testing.T) {
	symbols := functions(t, open(t, testkit.Compile(t, "symbols.c")))
	names := functions(t, open(t, testkit.Compile(t, "names.cpp")))
	for _, row := range []struct {
		fs   *Functions
		name string
		want string
	}{
		{symbols, "orignal", "original"},
		{symbols, "orginal", "original"},
		{symbols, "anchr", "anchor"},
		{symbols, "sizeles", "sizeless, sizeless_unwound"},
		{symbols, "completely_different_name", ""},
		{names, "shop::prise", "shop::price"},
		{names, "shop::receit", "shop::receipt"},
	} {
		_, err := row.fs.Lookup(row.name)
		var notFound *NotFoundError
		if !errors.As(err, &notFound) {
			t.Errorf("lookup %s: %v, want not found", row.name, err)
			continue
		}
		if got := strings.Join(notFound.Suggestions, ", "); got != row.want {
			t.Errorf("lookup %s suggests %q, want %q", row.name, got, row.want)
		}
		if notFound.NoSymtab {
			t.Errorf("lookup %s: a file with symbols is said to be stripped", row.name)
		}
	}
}

func TestNotFoundSaysWhatToDo(t *testing.T) {
	err := error(&NotFoundError{Name: "wrok", Suggestions: []string{"work", "walk"}, NoSymtab: true})
	want := `no function "wrok"; did you mean work, walk? (the file is stripped: only exported functions have names; others can be given as 0xADDRESS)`
	if err.Error() != want {
		t.Errorf("%s", err)
	}
}

// Without its special characters a glob is like that of path.Match.
func TestGlobAgreesWithPathMatch(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	word := func(letters string, n int) string {
		b := make([]byte, random.IntN(n))
		for i := range b {
			b[i] = letters[random.IntN(len(letters))]
		}
		return string(b)
	}
	matched := 0
	for range 200000 {
		pattern, name := word("ab*?", 8), word("ab", 10)
		want, err := path.Match(pattern, name)
		if err != nil {
			t.Fatal(err)
		}
		if got := glob(pattern, name); got != want {
			t.Fatalf("glob(%q, %q) = %v", pattern, name, got)
		}
		if want {
			matched++
		}
	}
	if matched < 1000 {
		t.Errorf("only %d matches tried", matched)
	}
}

// The textbook recursion.
func TestEditDistanceAgreesWithItsDefinition(t *testing.T) {
	memo := map[string]int{}
	var distance func(a, b string) int
	distance = func(a, b string) int {
		if a == "" || b == "" {
			return len(a) + len(b)
		}
		key := a + "|" + b
		if d, ok := memo[key]; ok {
			return d
		}
		cost := 1
		if a[0] == b[0] {
			cost = 0
		}
		d := min(distance(a[1:], b[1:])+cost, distance(a[1:], b)+1, distance(a, b[1:])+1)
		memo[key] = d
		return d
	}
	random := rand.New(rand.NewPCG(5, 6))
	for range 3000 {
		a, b := fmt.Sprintf("%b", random.IntN(512)), fmt.Sprintf("%b", random.IntN(512))
		want := distance(a, b)
		for limit := range 10 {
			got := editDistance(a, b, limit)
			if want <= limit && got != want || want > limit && got <= limit {
				t.Fatalf("editDistance(%q, %q, %d) = %d, the distance is %d", a, b, limit, got, want)
			}
		}
	}
}
