package plans

// firstNormalOID is the first oid of objects that users made: those below come with
// the server.
const firstNormalOID = 16384

// Facts are catalog rows that come with the server: what a compilation has read of
// them, the next one need not ask for. They hold for one server, until somebody alters
// its own types, functions and operators. They are not safe for concurrent use.
type Facts struct {
	types      map[uint32]*typeInfo
	functions  map[uint32]*function
	operators  map[uint32]*operator
	collations map[uint32]*collation
}

// NewFacts knows nothing yet.
func NewFacts() *Facts {
	return &Facts{
		types: map[uint32]*typeInfo{}, functions: map[uint32]*function{},
		operators: map[uint32]*operator{}, collations: map[uint32]*collation{},
	}
}
