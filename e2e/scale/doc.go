// Package scale shows that the price of a round follows what changed: neither the
// number of other views nor the size of the tables makes it dearer.
//
// TestOthersAreLeftAlone counts the statements of a round. TestCostAgainstSize counts
// the rows that a round reads, for each strategy, over a table of 10,000 rows and one
// of 100,000, and prints times. For figures at other sizes:
//
//	go test ./e2e/scale -v -run Cost -timeout 0 -scale.sizes 10000,100000,1000000,10000000
package scale
