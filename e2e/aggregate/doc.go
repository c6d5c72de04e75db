// Package aggregate tests views that group one table, as a daemon keeps them: every shape of the list, aggregates of
// users' own, and what retractions cost.
package aggregate
