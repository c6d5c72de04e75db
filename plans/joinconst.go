package plans

import (
	"encoding/binary"
	"math"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgtype"
)

// constant writes a constant of a few types. A stored rule holds it as bytes.
func (w *writer) constant(n *node) (string, bool) {
	t := w.j.a.types[n.oid("consttype")]
	if t == nil {
		return "", false
	}
	if n.is("constisnull") {
		return "NULL::" + t.Display, true
	}
	text, ok := constText(n)
	if !ok {
		return "", false
	}
	return "'" + text + "'::" + t.Display, true
}

// constText is a constant as its type's input takes it, without what would have to be
// escaped.
func constText(n *node) (string, bool) {
	raw, ok := datum(n.text("constvalue"))
	if !ok {
		return "", false
	}
	if n.is("constbyval") {
		return valueText(n.oid("consttype"), raw)
	}
	switch n.oid("consttype") {
	case pgtype.TextOID, pgtype.VarcharOID:
		return plainText(raw)
	case pgtype.IntervalOID:
		return intervalText(raw)
	}
	return "", false
}

// valueText is a number or a boolean, which stand in a machine word.
func valueText(typ uint32, raw []byte) (string, bool) {
	const word = 8
	if len(raw) != word {
		return "", false
	}
	value := int64(binary.LittleEndian.Uint64(raw))
	switch typ {
	case pgtype.Int2OID:
		return strconv.Itoa(int(int16(value))), true
	case pgtype.Int4OID:
		return strconv.Itoa(int(int32(value))), true
	case pgtype.Int8OID:
		return strconv.FormatInt(value, 10), true
	case pgtype.BoolOID:
		return strconv.FormatBool(raw[0] != 0), true
	}
	return "", false
}

// datum reads the bytes of a stored constant: the type's length, and each byte as a signed
// number in brackets.
func datum(text string) ([]byte, bool) {
	words := strings.Fields(text)
	if len(words) < 4 || words[1] != "[" || words[len(words)-1] != "]" {
		return nil, false
	}
	var out []byte
	for _, word := range words[2 : len(words)-1] {
		v, err := strconv.Atoi(word)
		if err != nil {
			return nil, false
		}
		out = append(out, byte(v))
	}
	const least = 4 // the shortest that is read: the header of a text
	return out, len(out) >= least
}

// plainText reads a text with a long header, of characters that are the same in every
// encoding.
func plainText(raw []byte) (string, bool) {
	const header = 4
	if size := binary.LittleEndian.Uint32(raw); size&3 != 0 || int(size>>2) != len(raw) {
		return "", false
	}
	for _, c := range raw[header:] {
		if c < ' ' || c > '~' || c == '\'' || c == '\\' {
			return "", false
		}
	}
	return string(raw[header:]), true
}

// intervalText reads an interval that is not infinite.
func intervalText(raw []byte) (string, bool) {
	const size = 16
	if len(raw) != size {
		return "", false
	}
	micros := int64(binary.LittleEndian.Uint64(raw))
	days, months := int32(binary.LittleEndian.Uint32(raw[8:])), int32(binary.LittleEndian.Uint32(raw[12:]))
	if micros == math.MaxInt64 || micros == math.MinInt64 {
		return "", false
	}
	return strconv.Itoa(int(months)) + " mons " + strconv.Itoa(int(days)) + " days " + strconv.FormatInt(micros, 10) + " us", true
}
