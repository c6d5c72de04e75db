package config

// refuseUnsupported reports the keys that are part of the configuration but
// have no effect yet. Ignoring them would promise what is not kept.
func (d *decoder) refuseUnsupported(cfg *Config) {
	def := Default()
	src := cfg.Source
	d.refuse(src.Failover, "source.failover", "failover slots", "set failover: false")
	for name, t := range src.Tables {
		d.refuse(t.Feed != "", "source.tables["+name.String()+"].feed", "a feed besides the replication stream", "remove the line")
	}
	d.refuse(cfg.Backing.URL != "", "backing.url", "a backing database of its own", "remove the line: backing tables live in the source database")
	d.refuse(cfg.Provision != def.Provision, "provision", "provision: verify", "use provision: apply")
	d.refuse(cfg.Fill.ChunkRows != def.Fill.ChunkRows, "fill.chunk_rows", "filling in chunks of another size", "remove the line")
	d.refuse(cfg.Fill.MaxRowsPerSecond != def.Fill.MaxRowsPerSecond, "fill.max_rows_per_second", "a speed limit for fills", "remove the line")
	for i := range cfg.Views {
		v := &cfg.Views[i]
		d.refuse(len(v.Constraints) > 0, v.path+".constraints", "constraints on derived rows", "remove them")
		d.refuse(v.ColdRead != ColdReadNone, v.path+".cold_read", "cold_read: read_through", "use cold_read: none")
		d.refuse(len(v.WarmUp) > 0, v.path+".warm_up", "filling some rows first", "remove the line")
		d.refuse(v.AllowDestructive, v.path+".allow_destructive", "replacing the table of a changed view", "set allow_destructive: false")
	}
}

func (d *decoder) refuse(used bool, path, what, hint string) {
	if used && !d.wrong[path] {
		d.reportPath(path, what+": not supported yet", hint)
	}
}
