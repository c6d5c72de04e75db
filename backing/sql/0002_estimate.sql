-- What a round of the view was expected to cost when its strategy was chosen, in the unit of Postgres' planner; null where
-- there was no choice. A strategy is chosen anew only where that has become another by far.
ALTER TABLE {catalog}.view ADD COLUMN estimate float8;
