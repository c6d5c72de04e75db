package workload

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
)

// Values generates the values of a column, as SQL expressions. It draws from r alone, so that equal seeds give equal
// workloads.
type Values func(r *rand.Rand) string

// Ints gives the integers from lo to hi, both included.
func Ints(lo, hi int) Values {
	return func(r *rand.Rand) string { return strconv.Itoa(lo + r.IntN(hi-lo+1)) }
}

// OneOf gives one of the SQL expressions.
func OneOf(expressions ...string) Values {
	return func(r *rand.Rand) string { return expressions[r.IntN(len(expressions))] }
}

// Strings gives one of the texts.
func Strings(texts ...string) Values {
	return func(r *rand.Rand) string { return quote(texts[r.IntN(len(texts))]) }
}

// Typed gives one of the texts as values of the type.
func Typed(typ string, texts ...string) Values {
	plain := Strings(texts...)
	return func(r *rand.Rand) string { return plain(r) + "::" + typ }
}

// Maybe gives NULL with the given probability, else what values gives.
func Maybe(null float64, values Values) Values {
	return Mix(null, OneOf("NULL"), values)
}

// Mix gives a value of first with the given probability, else one of second.
func Mix(share float64, first, second Values) Values {
	return func(r *rand.Rand) string {
		if r.Float64() < share {
			return first(r)
		}
		return second(r)
	}
}

// Wide gives incompressible texts of 8 kB, computed by the server, so that the statement stays readable.
func Wide() Values {
	return func(r *rand.Rand) string {
		return fmt.Sprintf("(SELECT string_agg(md5('%d:' || i), '') FROM generate_series(1, 256) AS i)", r.IntN(1000))
	}
}

// Words gives texts of up to the given number of words.
func Words(most int, words ...string) Values {
	return func(r *rand.Rand) string {
		picked := make([]string, r.IntN(most+1))
		for i := range picked {
			picked[i] = words[r.IntN(len(words))]
		}
		return quote(strings.Join(picked, " "))
	}
}

func quote(text string) string {
	if strings.Contains(text, `\`) {
		// Right whatever standard_conforming_strings says.
		return ` E'` + strings.NewReplacer(`\`, `\\`, `'`, `''`).Replace(text) + `'`
	}
	return "'" + strings.ReplaceAll(text, "'", "''") + "'"
}
