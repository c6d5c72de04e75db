package replication

import (
	"context"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"
)

// session is an SQL connection that is made when it is needed and made again when it broke.
type session struct {
	connect func(context.Context) (*pgx.Conn, error)

	mu   sync.Mutex // held while the connection is used
	conn *pgx.Conn
}

// do runs f on the connection, once more on a new one if an old connection turns out to be dead.
func (s *session) do(ctx context.Context, f func(*pgx.Conn) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		reused := s.conn != nil && !s.conn.IsClosed()
		if !reused {
			conn, err := s.connect(ctx)
			if err != nil {
				return fmt.Errorf("connect for SQL: %w", err)
			}
			s.conn = conn
		}
		err := f(s.conn)
		if err != nil && reused && s.conn.IsClosed() && ctx.Err() == nil {
			continue
		}
		return err
	}
}

func (s *session) close(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != nil {
		_ = s.conn.Close(ctx) // nothing is open on it
		s.conn = nil
	}
}
