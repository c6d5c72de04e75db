package replication

import (
	"encoding/binary"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pglogrepl"
	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/ingest"
)

// message builds pgoutput messages.
type message []byte

func (m message) u8(b ...byte) message   { return append(m, b...) }
func (m message) u16(n int) message      { return binary.BigEndian.AppendUint16(m, uint16(n)) }
func (m message) u32(n uint32) message   { return binary.BigEndian.AppendUint32(m, n) }
func (m message) u64(n uint64) message   { return binary.BigEndian.AppendUint64(m, n) }
func (m message) text(s string) message  { return append(append(m, s...), 0) }
func (m message) value(s string) message { return append(m.u8('t').u32(uint32(len(s))), s...) }
func (m message) row(values ...any) message {
	m = m.u16(len(values))
	for _, v := range values {
		switch v := v.(type) {
		case nil:
			m = m.u8('n')
		case ingest.Value:
			m = m.u8('u')
		default:
			m = m.value(fmt.Sprint(v))
		}
	}
	return m
}

func begin(final uint64, xid uint32) message { return message("B").u64(final).u64(0).u32(xid) }
func commit(lsn uint64) message              { return message("C").u8(0).u64(lsn).u64(lsn + 8).u64(0) }

// relation describes a table of integers whose first column is its key.
func relation(oid uint32, name string, identity byte, columns ...string) message {
	m := message("R").u32(oid).text("public").text(name).u8(identity).u16(len(columns))
	for i, c := range columns {
		flag := byte(0)
		if i == 0 || identity == 'f' {
			flag = 1
		}
		m = m.u8(flag).text(c).u32(23).u32(math.MaxUint32)
	}
	return m
}

func testDecoder(received ingest.LSN) *decoder {
	return newDecoder(
		func(oid uint32) (lineage, error) {
			return lineage{partition: oid == 2, ancestors: []uint32{100 + oid}}, nil
		},
		func() *collector { return newCollector("", 1<<20) }, received)
}

func feed(t testing.TB, d *decoder, messages ...message) []*ingest.Transaction {
	t.Helper()
	var all []*ingest.Transaction
	for _, m := range messages {
		tx, err := d.decode(m)
		require.NoError(t, err)
		// The buffer belongs to the connection and is used again.
		for i := range m {
			m[i] = 0xff
		}
		if tx != nil {
			all = append(all, tx)
		}
	}
	return all
}

func TestDecode(t *testing.T) {
	t.Parallel()
	missing := ingest.Missing
	for _, tc := range []struct {
		name string
		in   []message
		want []string
	}{
		{"insert", []message{message("I").u32(1).u8('N').row(1, nil, "")}, []string{"insert t id=1 a=NULL b="}},
		{
			"update that leaves the identity alone",
			[]message{message("U").u32(1).u8('N').row(1, 2, missing)},
			[]string{"update t id=1 a=? b=? -> id=1 a=2 b=?"},
		},
		{
			"update of the key",
			[]message{message("U").u32(1).u8('K').row(1, nil, nil).u8('N').row(9, 2, nil)},
			[]string{"update t id=1 a=? b=? -> id=9 a=2 b=NULL"},
		},
		{
			"update with a key that was not sent again",
			[]message{message("U").u32(1).u8('K').row("long", nil, nil).u8('N').row(missing, 2, missing)},
			[]string{"update t id=long a=? b=? -> id=long a=2 b=?"},
		},
		{
			"update under FULL",
			[]message{message("U").u32(2).u8('O').row(1, nil, "long").u8('N').row(1, 2, missing)},
			[]string{"update full id=1 a=NULL b=long -> id=1 a=2 b=long"},
		},
		{
			"an old image is whole only where the relation is FULL",
			[]message{message("U").u32(1).u8('O').row(1, nil, nil).u8('N').row(1, 2, missing)},
			[]string{"update t id=1 a=? b=? -> id=1 a=2 b=?"},
		},
		{"delete by key", []message{message("D").u32(1).u8('K').row(1, nil, nil)}, []string{"delete t id=1 a=? b=?"}},
		{"delete under FULL", []message{message("D").u32(2).u8('O').row(1, nil, 3)}, []string{"delete full id=1 a=NULL b=3"}},
		{"truncate", []message{message("T").u32(2).u8(1).u32(2).u32(1)}, []string{"truncate full", "truncate t"}},
		{
			"what is no change", []message{
				message("O").u64(1).text("origin"), message("Y").u32(7).text("public").text("mood"),
				message("M").u8(0).u64(1).text("p").u32(1).u8('x'),
			}, []string{},
		},
		{"stray stream messages", []message{message("S").u32(1).u8(1), message("E"), message("A").u32(1).u32(1)}, []string{}},
		{
			"a new description", []message{
				message("I").u32(1).u8('N').row(1, 2, 3), relation(1, "u", 'd', "id", "c"), message("I").u32(1).u8('N').row(1, 2),
			}, []string{"insert t id=1 a=2 b=3", "insert u id=1 c=2"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			d := testDecoder(0)
			all := feed(t, d, begin(50, 7), relation(1, "t", 'd', "id", "a", "b"), relation(2, "full", 'f', "id", "a", "b"))
			require.Empty(t, all)
			all = feed(t, d, append(tc.in, commit(50))...)
			require.Len(t, all, 1)
			require.EqualValues(t, 7, all[0].XID)
			require.EqualValues(t, 50, all[0].FinalLSN)
			require.EqualValues(t, 58, all[0].EndLSN)
			require.Equal(t, time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC), all[0].CommitTime)
			require.Equal(t, tc.want, printed(t, all))
		})
	}
}

func TestDecodeTable(t *testing.T) {
	t.Parallel()
	d := testDecoder(0)
	feed(t, d, relation(1, "t", 'd', "id", "a"), relation(2, "full", 'f', "id", "a"))
	want := map[uint32]*ingest.Table{
		1: {OID: 1, Schema: "public", Name: "t", Ancestors: []uint32{101}, Columns: []ingest.Column{
			{Name: "id", TypeOID: 23, Identity: true}, {Name: "a", TypeOID: 23},
		}},
		2: {OID: 2, Schema: "public", Name: "full", Full: true, Partition: true, Ancestors: []uint32{102}, Columns: []ingest.Column{
			{Name: "id", TypeOID: 23, Identity: true}, {Name: "a", TypeOID: 23, Identity: true},
		}},
	}
	require.Empty(t, cmp.Diff(want, d.tables))
}

// TestDecodeOnce: what was received on an earlier connection is dropped, by the commit record, and only its end is told.
func TestDecodeOnce(t *testing.T) {
	t.Parallel()
	d := testDecoder(50)
	all := feed(t, d, begin(50, 1), relation(1, "t", 'd', "id"), message("I").u32(1).u8('N').row(1), message("T").u32(1).u8(0).u32(1), commit(50))
	require.Len(t, all, 1)
	require.Nil(t, all[0].Changes)
	require.EqualValues(t, 58, all[0].EndLSN)
	all = feed(t, d, begin(51, 2), message("I").u32(1).u8('N').row(2), commit(51))
	require.Equal(t, []string{"insert t id=2"}, printed(t, all))
	require.EqualValues(t, 51, d.received)
}

// TestDecodeBroken: what cannot be understood stops with its code and position.
func TestDecodeBroken(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		in   message
		text string
	}{
		{"unknown", message("Z").u32(1), "'Z' (0x5a)"},
		{"prepare", message("P").u32(1), "'P' (0x50)"},
		{"empty", message{}, "message empty of 0 bytes"},
		{"relation not described", message("I").u32(9).u8('N').row(1), "relation 9"},
		{"wrong width", message("I").u32(1).u8('N').row(1), "1 columns, its relation 3"},
		{"truncated value", message("I").u32(1).u8('N').u16(3).u8('t').u32(10).u8('x'), "ends early"},
		{"huge value", message("I").u32(1).u8('N').u16(3).u8('t').u32(math.MaxUint32), "ends early"},
		{"unknown kind of value", message("I").u32(1).u8('N').u16(3).u8('b').u32(0), `kind 'b'`},
		{"left over", message("I").u32(1).u8('N').row(1, 2, 3).u8(0), "1 bytes are left over"},
		{"insert of an old row", message("I").u32(1).u8('O').row(1, 2, 3), "marked 'O'"},
		{"update without a new row", message("U").u32(1).u8('K').row(1, nil, nil), "ends early"},
		{"delete of a new row", message("D").u32(1).u8('N').row(1, nil, nil), "marked 'N'"},
		{"truncate of more than is there", message("T").u32(math.MaxUint32).u8(0).u32(1), "ends early"},
		{"truncated relation", relation(1, "t", 'd', "id", "a")[:20], "bytes"},
		{"truncated begin", begin(60, 1)[:9], "BeginMessage"},
		{"begin within", begin(60, 9), "transaction 9 begins within transaction 7"},
		{"another commit", commit(51), "0/33"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			d := testDecoder(0)
			feed(t, d, begin(50, 7), relation(1, "t", 'd', "id", "a", "b"))
			_, err := d.decode(tc.in)
			require.ErrorIs(t, err, ErrProtocol)
			require.ErrorContains(t, err, tc.text)
			require.ErrorContains(t, err, "commits at 0/32")
			require.True(t, isTerminal(err))
		})
	}
	t.Run("outside a transaction", func(t *testing.T) {
		t.Parallel()
		d := testDecoder(0)
		feed(t, d, relation(1, "t", 'd', "id"))
		for _, m := range []message{message("I").u32(1).u8('N').row(1), message("T").u32(1).u8(0).u32(1), commit(50)} {
			_, err := d.decode(m)
			require.ErrorIs(t, err, ErrProtocol)
		}
	})
}

// FuzzDecode: no message makes the decoder panic or exhaust memory, and a row that it reads is what pglogrepl reads.
func FuzzDecode(f *testing.F) {
	for _, m := range []message{
		message("I").u32(1).u8('N').row(1, nil, "x"), message("U").u32(2).u8('O').row(1, 2, 3).u8('N').row(1, 2, ingest.Missing),
		message("U").u32(1).u8('N').row(1, 2, 3), message("D").u32(1).u8('K').row(1, nil, nil), begin(60, 1), commit(50),
		relation(1, "t", 'd', "id", "a"), message("T").u32(2).u8(1).u32(2).u32(1), message("O").u64(1).text("x"),
		message("Y").u32(7).text("s").text("t"), message("M").u8(0).u64(1).text("p").u32(1).u8('x'), message("S").u32(1).u8(1),
	} {
		f.Add([]byte(m))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		d := testDecoder(0)
		feed(t, d, begin(50, 7), relation(1, "t", 'd', "id", "a", "b"), relation(2, "full", 'f', "id", "a", "b"))
		defer d.close()
		if _, err := d.decode(data); err != nil {
			require.ErrorIs(t, err, ErrProtocol)
			return
		}
		if d.changes == nil || len(d.changes.list) == 0 || data[0] == 'T' {
			return
		}
		theirs, err := pglogrepl.Parse(data)
		require.NoError(t, err)
		sameRows(t, theirs, d.changes.list[0])
	})
}

// sameRows compares a change with pglogrepl's reading of its message.
func sameRows(t *testing.T, theirs pglogrepl.Message, ours *ingest.Change) {
	t.Helper()
	switch m := theirs.(type) {
	case *pglogrepl.InsertMessage:
		require.Equal(t, ingest.Insert, ours.Op)
		sameRow(t, m.Tuple, ours.New, nil)
	case *pglogrepl.UpdateMessage:
		require.Equal(t, ingest.Update, ours.Op)
		sameRow(t, m.NewTuple, ours.New, ours.Old)
		if m.OldTuple != nil {
			sameOld(t, m.OldTuple, ours)
		}
	case *pglogrepl.DeleteMessage:
		require.Equal(t, ingest.Delete, ours.Op)
		sameOld(t, m.OldTuple, ours)
	default:
		t.Fatalf("a change came of %T", theirs)
	}
}

func sameOld(t *testing.T, theirs *pglogrepl.TupleData, ours *ingest.Change) {
	t.Helper()
	for i, c := range theirs.Columns {
		if !ours.Old[i].IsMissing() {
			require.Equal(t, valueOf(c), ours.Old[i])
			continue
		}
		require.True(t, !ours.Table.Columns[i].Identity || c.DataType == 'u')
	}
}

func sameRow(t *testing.T, theirs *pglogrepl.TupleData, ours, old ingest.Row) {
	t.Helper()
	require.Len(t, ours, len(theirs.Columns))
	for i, c := range theirs.Columns {
		want := valueOf(c)
		if want.IsMissing() && old != nil {
			want = old[i]
		}
		require.Equal(t, want, ours[i])
	}
}

func valueOf(c *pglogrepl.TupleDataColumn) ingest.Value {
	switch c.DataType {
	case 'n':
		return ingest.Null
	case 'u':
		return ingest.Missing
	}
	return ingest.Text(string(c.Data))
}

// TestStatusUpdate: all three positions are the confirmed one.
func TestStatusUpdate(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
	b := statusUpdate(0x1122334455, now, true)
	require.Equal(t, byte('d'), b[0])
	require.EqualValues(t, len(b)-1, binary.BigEndian.Uint32(b[1:]))
	require.Equal(t, byte('r'), b[5])
	for i := range 3 {
		require.EqualValues(t, 0x1122334455, binary.BigEndian.Uint64(b[6+8*i:]))
	}
	micros := int64(binary.BigEndian.Uint64(b[30:]))
	require.Equal(t, now, postgresEpoch.Add(time.Duration(micros)*time.Microsecond))
	require.Equal(t, byte(1), b[38])
	require.Equal(t, byte(0), statusUpdate(0, now, false)[38])
}

func TestMatchesStandby(t *testing.T) {
	t.Parallel()
	for names, want := range map[string]bool{
		"": false, "*": true, "mvsync": true, "MvSync": true, `"mvsync"`: true, "a, b": false, "a, mvsync": true,
		"FIRST 2 (a, mvsync, c)": true, "ANY 1 (*)": true, "1 (a,b)": false, "mvsync2": false, "ANY 2 (a, not_mvsync)": false,
	} {
		require.Equal(t, want, matchesStandby(names), names)
	}
}

// eightColumns is an insert of eight columns, as a stream of orders has it.
func eightColumns() message {
	return message("I").u32(1).u8('N').row(123456, "2026-01-02 03:04:05.678901+00", 42, "12.50", "shipped", nil, "some text of a customer", "f")
}

// BenchmarkDecode is what a row costs from the message to the change, beside pglogrepl's reading of it alone.
func BenchmarkDecode(b *testing.B) {
	columns := []string{"id", "at", "n", "price", "state", "void", "note", "flag"}
	b.Run("ours", func(b *testing.B) {
		b.ReportAllocs()
		insert := eightColumns()
		d := testDecoder(0)
		xid := uint32(0)
		lsn := uint64(1)
		feed(b, d, relation(1, "t", 'd', columns...), begin(lsn, xid))
		for b.Loop() {
			if _, err := d.decode(insert); err != nil {
				b.Fatal(err)
			}
			if d.changes.bytes > 1<<19 {
				feed(b, d, commit(lsn))
				lsn++
				feed(b, d, begin(lsn, xid))
			}
		}
	})
	b.Run("pglogrepl", func(b *testing.B) {
		b.ReportAllocs()
		insert := eightColumns()
		for b.Loop() {
			if _, err := pglogrepl.Parse(insert); err != nil {
				b.Fatal(err)
			}
		}
	})
}
