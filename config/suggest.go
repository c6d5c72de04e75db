package config

import "slices"

// didYouMean words a hint from the candidate nearest to what was written, or
// returns "" if none is near enough to be meant.
func didYouMean(written string, candidates []string) string {
	if best := closest(written, candidates); best != "" {
		return "did you mean " + best + "?"
	}
	return ""
}

// closest returns the candidate with the smallest edit distance, which may be
// a third of its length but at least 1; of equals the one with the longest
// common beginning.
func closest(written string, candidates []string) string {
	best, bestDistance, bestPrefix := "", 0, 0
	for _, c := range candidates {
		d, p := editDistance(written, c), commonPrefix(written, c)
		if d > max(1, len(c)/3) {
			continue
		}
		if best == "" || d < bestDistance || d == bestDistance && p > bestPrefix {
			best, bestDistance, bestPrefix = c, d, p
		}
	}
	return best
}

func commonPrefix(a, b string) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

// maxSuggestLength bounds the quadratic work of editDistance; no key of ours
// comes near it.
const maxSuggestLength = 64

// editDistance counts the insertions, deletions, substitutions and swaps of
// neighbours that turn a into b.
func editDistance(a, b string) int {
	s, t := []rune(a), []rune(b)
	if len(s) > maxSuggestLength || len(t) > maxSuggestLength {
		return maxSuggestLength
	}
	var before []int
	last := make([]int, len(t)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(s); i++ {
		row := make([]int, len(t)+1)
		row[0] = i
		for j := 1; j <= len(t); j++ {
			cost := 1
			if s[i-1] == t[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && s[i-1] == t[j-2] && s[i-2] == t[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last = last, row
	}
	return last[len(t)]
}

// sortedUnique sorts names for a message.
func sortedUnique(names []string) []string {
	slices.Sort(names)
	return slices.Compact(names)
}
