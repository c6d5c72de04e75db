package maintain

import (
	"context"
	"time"

	"github.com/mvsync/mvsync/backing"
	"github.com/mvsync/mvsync/ingest"
)

// member is one row of a class: what the body gives for an image, or a stored row.
type member struct {
	class int
	key   string     // the key's bytes: tells source rows of one class apart
	row   ingest.Row // the view's columns
	json  string
}

// classified is a batch of writes with what Postgres says of them.
type classified struct {
	stored map[int]member // by class: who holds the stored row
	wrote  map[int]member // by write: the body's row for the new image, where there is one
	left   map[int]member // by write: class and key of the old image
}

// outcome is what the writes leave behind.
type outcome struct {
	winners    []member // classes whose row was written, with the member written last
	vacated    []member // classes whose holder went: a survivor must be found in the source
	collisions []collision
}

// collision is one source row's change that replaced another source row's image.
type collision struct{ key, old, new member }

// replay runs the writes in their order over the classes' holders. A row's own change
// of spelling is no collision.
func (c classified) replay(n int) outcome {
	holders, touched := map[int]member{}, map[int]bool{}
	for class, m := range c.stored {
		holders[class] = m
	}
	var order []int
	touch := func(class int) {
		if !touched[class] {
			touched[class] = true
			order = append(order, class)
		}
	}
	vacant := map[int]member{}
	var out outcome
	for i := range n {
		old, hadOld := c.left[i]
		fresh, hasNew := c.wrote[i]
		if hadOld {
			if h, ok := holders[old.class]; ok && h.key == old.key {
				touch(old.class)
				delete(holders, old.class)
				vacant[old.class] = old
			}
		}
		if !hasNew {
			continue
		}
		touch(fresh.class)
		if h, ok := holders[fresh.class]; ok && h.key != fresh.key {
			out.collisions = append(out.collisions, collision{key: fresh, old: h, new: fresh})
		}
		holders[fresh.class] = fresh
		delete(vacant, fresh.class)
	}
	for _, class := range order {
		if h, ok := holders[class]; ok {
			out.winners = append(out.winners, h)
		} else {
			out.vacated = append(out.vacated, vacant[class])
		}
	}
	return out
}

// recordCollisions writes collisions in the round's transaction; a round that does not
// commit has reported none.
func (r *round) recordCollisions(ctx context.Context, v *view, found []collision) error {
	if len(found) == 0 {
		return nil
	}
	var out []backing.Collision
	for _, c := range found {
		out = append(out, backing.Collision{
			Key: c.key.json, Weakened: v.plan.Coarsened, Old: c.old.json, New: c.new.json, At: time.Now(),
		})
	}
	r.collisions[v] += len(found)
	return r.e.host.AddCollisions(ctx, r.tx, v.layout.ID, int64(len(found)), out)
}
