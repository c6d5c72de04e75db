package ingest

import (
	"fmt"
	"runtime"
	"strconv"
	"testing"
)

// ordersTable is a table of the common shape: a key, references, a state, an amount.
func ordersTable() *Table {
	t := &Table{OID: 1, Schema: "public", Name: "orders"}
	for _, name := range []string{"id", "customer_id", "status", "amount", "created_at", "note"} {
		t.Columns = append(t.Columns, Column{Name: name, Identity: name == "id"})
	}
	return t
}

func orderRow(i int) Row {
	return Row{
		Text(strconv.Itoa(1_000_000 + i)), Text(strconv.Itoa(i % 5000)), Text("shipped"),
		Text(strconv.Itoa(i%997) + ".50"), Text("2024-05-06 07:08:09+00"), Null,
	}
}

// BenchmarkImagesInsert adds a million new rows, of which five columns are kept,
// to one set. B/row is what stays alive, estimated/row what Bytes says of it.
func BenchmarkImagesInsert(b *testing.B) {
	const rows = 1_000_000
	for _, kind := range []string{"keyed", "bag"} {
		b.Run(kind, func(b *testing.B) {
			spec := ImageSpec{Columns: []string{"id", "customer_id", "status", "amount", "created_at"}, Key: []int{0}}
			if kind == "bag" {
				spec.Key = nil
			}
			table := ordersTable()
			change := Change{Table: table, Op: Insert, New: orderRow(0)}
			b.ReportAllocs()
			var before, after runtime.MemStats
			im := NewImages(spec)
			for b.Loop() {
				b.StopTimer()
				im.Reset()
				runtime.GC()
				runtime.ReadMemStats(&before)
				b.StartTimer()
				for i := range rows {
					change.New[0] = Text(strconv.Itoa(i)) // an allocation of the input's own
					if !im.Add(&change) {
						b.Fatal("not added")
					}
				}
			}
			b.StopTimer()
			runtime.GC()
			runtime.ReadMemStats(&after)
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/rows, "ns/row")
			b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/rows, "B/row")
			b.ReportMetric(float64(im.Bytes())/rows, "estimated/row")
			runtime.KeepAlive(im)
		})
	}
}

// BenchmarkImagesUpdate updates the same rows again and again: what a hot row costs.
func BenchmarkImagesUpdate(b *testing.B) {
	for _, rows := range []int{100, 100_000} {
		b.Run(fmt.Sprintf("rows=%d", rows), func(b *testing.B) {
			table := ordersTable()
			im := NewImages(ImageSpec{Columns: []string{"id", "customer_id", "status", "amount"}, Key: []int{0}})
			changes := make([]Change, rows)
			for i := range changes {
				row := orderRow(i)
				old := Row{row[0], Missing, Missing, Missing, Missing, Missing}
				changes[i] = Change{Table: table, Op: Update, Old: old, New: row}
			}
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				im.Add(&changes[n%rows])
				n++
			}
		})
	}
}
