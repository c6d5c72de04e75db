package collision

import "errors"

var errPending = errors.New("not there yet")
