package maintain

import (
	"github.com/mvsync/mvsync/backing"
	"github.com/mvsync/mvsync/plans"
)

// fewKeys is the number of rows of an input up to which a plan's statements run in their form for few keys.
const fewKeys = 128

// bySize gives a statement of a plan the form that suits its inputs.
func bySize(sql string, inputs []backing.Input) string {
	for i := range inputs {
		if len(inputs[i].Rows) > fewKeys {
			return plans.ManyKeys(sql)
		}
	}
	return plans.FewKeys(sql)
}

// sized gives a merge the form that suits its inputs.
func sized(m backing.Merge, inputs []backing.Input) backing.Merge {
	m.New, m.Touched = bySize(m.New, inputs), bySize(m.Touched, inputs)
	touched := make([]string, len(m.TouchedBy))
	for i, sql := range m.TouchedBy {
		touched[i] = bySize(sql, inputs)
	}
	m.TouchedBy = touched
	return m
}
