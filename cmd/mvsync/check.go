package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/mvsync/mvsync/config"
	"github.com/mvsync/mvsync/plans"
	"github.com/mvsync/mvsync/replication"
)

func (c *cli) checkCommand() *cobra.Command {
	var sql, grants bool
	cmd := &cobra.Command{
		Use:     "check",
		GroupID: "look",
		Short:   "Check configuration, database and views, changing nothing",
		Long: `Check the configuration, the server and every view, changing nothing, and print each view's strategy or
why it is refused. Exit status 3 if a view is refused or the server is not ready.

--sql prints the statements that an operator has to run first, --grants those that give the role of
source.url the rights that it lacks. A view over tables that cannot be read names one of them at a time:
run what is printed until nothing is.`,
		Example: "  mvsync check\n  mvsync check --sql | psql shop\n  mvsync check --grants",
		Args:    none(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if sql && grants {
				return usagef(cmd, "--sql and --grants print different scripts: choose one")
			}
			return c.check(cmd.Context(), sql, grants)
		},
	}
	cmd.Flags().BoolVar(&sql, "sql", false, "print every statement that an operator has to run")
	cmd.Flags().BoolVar(&grants, "grants", false, "print the grants that this configuration needs")
	return cmd
}

// checked is what check found out.
type checked struct {
	cfg      *config.Config
	verdicts []verdict
	findings []replication.Finding
}

func (c *cli) check(ctx context.Context, sql, grants bool) error {
	src, err := c.source()
	if err != nil {
		return err
	}
	found, err := src.check(ctx)
	if err != nil {
		return err
	}
	switch {
	case grants:
		return c.printGrants(ctx, src, found)
	case sql:
		return c.printStatements(found)
	case c.output == "json":
		err = c.printChecked(found)
	default:
		found.print(c)
	}
	if err == nil && !found.fine() {
		return answerNo()
	}
	return err
}

// check asks everything that can be asked. On a server that is not ready, such as a standby, views may not be planned at
// all, which is no finding about them.
func (s *source) check(ctx context.Context) (*checked, error) {
	found := &checked{cfg: s.cfg}
	if err := s.do(ctx, "check", func(*pgxConn) error { return nil }); err != nil {
		return nil, err
	}
	var judgeErr, err error
	found.verdicts, judgeErr = s.judge(ctx)
	if judgeErr == nil {
		judgeErr = s.tryLaws(ctx, found.verdicts)
	}
	found.findings, err = replication.Preflight(ctx, s.target(), accepted(found.verdicts))
	if err != nil {
		return nil, err
	}
	found.findings = slices.DeleteFunc(found.findings, func(f replication.Finding) bool { return s.serving(ctx, f) })
	if judgeErr != nil && found.fine() {
		return nil, judgeErr
	}
	return found, nil
}

// tryLaws tries the declared algebras of aggregates on rows of the sources, which planning does not do.
func (s *source) tryLaws(ctx context.Context, verdicts []verdict) error {
	return s.do(ctx, "check", func(conn *pgxConn) error {
		for i := range verdicts {
			v := &verdicts[i]
			if v.plan == nil {
				continue
			}
			broken, err := v.plan.CheckLaws(ctx, conn)
			if err != nil {
				return err
			}
			if broken != nil {
				v.plan, v.refusal = nil, broken
			}
		}
		return nil
	})
}

// serving reports whether a finding is that the slot is in use, and it is our own daemon that uses it.
func (s *source) serving(ctx context.Context, f replication.Finding) bool {
	if f.What != "replication slot" || !strings.Contains(f.Why, replication.ErrSlotInUse.Error()) {
		return false
	}
	var leader int32
	err := s.do(ctx, "check", func(conn *pgxConn) (err error) {
		leader, err = s.host(discard()).Leader(ctx, conn)
		return err
	})
	return err == nil && leader != 0
}

// fine reports whether run would maintain everything.
func (f *checked) fine() bool {
	return !slices.ContainsFunc(f.verdicts, func(v verdict) bool { return v.refusal != nil }) &&
		!slices.ContainsFunc(f.findings, func(f replication.Finding) bool { return !f.Warning })
}

func (f *checked) print(c *cli) {
	p := c.colours(c.std.Out)
	g := newGrid("VIEW", "STRATEGY", "KEY", "TABLES")
	refused := int64(0)
	for _, v := range f.verdicts {
		if v.refusal != nil {
			refused++
			g.add(v.view.Name.String(), p.in(red, "refused"), "-", string(v.refusal.Code))
			continue
		}
		e := v.plan.Explain(nil)
		tables := make([]string, len(e.Sources))
		for i, s := range e.Sources {
			tables[i] = s.Table
		}
		g.add(e.View, p.in(green, string(e.Strategy)), "("+strings.Join(e.Key, ", ")+")", strings.Join(tables, ", "))
	}
	g.print(c.std.Out, p)
	for _, v := range f.verdicts {
		if v.refusal != nil {
			fmt.Fprintln(c.std.Err, refusalMistake(f.cfg, v.view, v.refusal).Error())
		}
		if v.plan != nil && len(v.plan.Coarsened) > 0 {
			fmt.Fprintf(c.std.Err, "mvsync: warning: %s: its key is weaker than its table's in %s: rows that differ only there become one\n",
				v.view.Name, strings.Join(v.plan.Coarsened, ", "))
		}
	}
	serious := int64(0)
	for _, finding := range f.findings {
		kind := ""
		if finding.Warning {
			kind = "warning: "
		} else {
			serious++
		}
		fmt.Fprintf(c.std.Err, "mvsync: %s%s\n", kind, oneLine(finding.String()))
	}
	switch {
	case f.fine():
		fmt.Fprintf(c.std.Out, "\n%s; mvsync run would maintain %s\n", p.in(green, "all fine"), plural(int64(len(f.verdicts)), "view"))
	default:
		fmt.Fprintf(c.std.Out, "\n%s refused, %s on the server\n", plural(refused, "view"), plural(serious, "problem"))
	}
}

// printChecked prints the findings as JSON.
func (c *cli) printChecked(f *checked) error {
	type finding struct {
		What    string `json:"what"`
		Where   string `json:"where"`
		Why     string `json:"why"`
		Do      string `json:"do"`
		Warning bool   `json:"warning"`
	}
	views := make([]any, len(f.verdicts))
	for i, v := range f.verdicts {
		views[i] = v.explain(f.verdicts)
	}
	findings := make([]finding, len(f.findings))
	for i, x := range f.findings {
		findings[i] = finding(x)
	}
	return c.printJSON(map[string]any{"fine": f.fine(), "views": views, "findings": findings})
}

// printStatements prints what an operator has to run, as a script.
func (c *cli) printStatements(f *checked) error {
	statements := []string{}
	add := func(about, text string) {
		for _, sql := range statementsIn(text) {
			line := "-- " + oneLine(about) + "\n" + sql + ";"
			if !slices.ContainsFunc(statements, func(s string) bool { return strings.HasSuffix(s, "\n"+sql+";") }) {
				statements = append(statements, line)
			}
		}
	}
	for _, finding := range f.findings {
		if !finding.Warning {
			add(finding.What+", "+finding.Where+": "+finding.Why, finding.Do)
		}
	}
	for _, v := range f.verdicts {
		if v.refusal != nil {
			add(v.view.Name.String()+": "+v.refusal.Reason, v.refusal.Suggestion)
		}
	}
	return c.printScript(statements)
}

func (c *cli) printScript(statements []string) error {
	if c.output == "json" {
		return c.printJSON(statements)
	}
	for _, s := range statements {
		fmt.Fprintln(c.std.Out, s)
	}
	return nil
}

var statementStart = regexp.MustCompile(`\b(ALTER (TABLE|SYSTEM|ROLE|PUBLICATION|DATABASE)|GRANT|DROP PUBLICATION|SELECT pg_drop_replication_slot) `)

// statementsIn finds the SQL in advice such as "run ALTER TABLE t REPLICA IDENTITY FULL (or ADD PRIMARY KEY (...))". What is
// not complete is left out: it is for a person to fill in.
func statementsIn(text string) []string {
	var out []string
	starts := statementStart.FindAllStringIndex(text, -1)
	for i, at := range starts {
		end := len(text)
		if i+1 < len(starts) {
			end = starts[i+1][0]
		}
		sql := text[at[0]:end]
		for _, stop := range []string{" (or", ", and ", ", or ", ", then ", ";", "\n"} {
			sql, _, _ = strings.Cut(sql, stop)
		}
		if !strings.Contains(sql, "...") {
			out = append(out, strings.TrimRight(sql, " .,;"))
		}
	}
	return out
}

// grantsSQL lists what the role lacks for reading and publishing tables. Publishing a table takes its owner. Nobody
// should become a superuser for that: tables of one are published beforehand.
const grantsSQL = `
WITH t AS (
	SELECT c.oid, pg_catalog.format('%I.%I', n.nspname, c.relname) AS name, n.oid AS schema, n.nspname, c.relkind,
	       o.rolname AS owner, o.rolsuper
	FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
	JOIN pg_catalog.pg_roles o ON o.oid = c.relowner
	WHERE c.oid = ANY ($1) OR c.oid IN (SELECT pg_catalog.to_regclass(r) FROM pg_catalog.unnest($5::text[]) r)
), unpublished AS (
	SELECT name, owner, rolsuper FROM t
	WHERE NOT pg_catalog.pg_has_role(owner, 'USAGE') AND NOT EXISTS (
		SELECT FROM pg_catalog.pg_publication_rel r JOIN pg_catalog.pg_publication p ON p.oid = r.prpubid
		WHERE r.prrelid = t.oid AND p.pubname = $3)
), publication AS (
	SELECT pg_catalog.quote_ident($3) AS name, EXISTS (SELECT FROM pg_catalog.pg_publication WHERE pubname = $3) AS there
)
SELECT 0, pg_catalog.format('GRANT CREATE ON DATABASE %I TO %I', pg_catalog.current_database(), current_user)
WHERE NOT pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE')
UNION
SELECT 1, pg_catalog.format('GRANT USAGE ON SCHEMA %I TO %I', nspname, current_user) FROM t
WHERE NOT pg_catalog.has_schema_privilege(schema, 'USAGE')
UNION
SELECT 2, pg_catalog.format('GRANT SELECT ON %s TO %I', name, current_user) FROM t
WHERE NOT pg_catalog.has_table_privilege(oid, 'SELECT')
UNION
SELECT 3, pg_catalog.format('GRANT CREATE, USAGE ON SCHEMA %I TO %I', n.nspname, current_user)
FROM pg_catalog.pg_namespace n WHERE n.nspname = ANY ($2) AND NOT pg_catalog.has_schema_privilege(n.oid, 'CREATE')
UNION
SELECT 4, pg_catalog.format('GRANT %I TO %I', owner, current_user) FROM unpublished WHERE NOT rolsuper
UNION
SELECT 5, CASE WHEN p.there THEN 'ALTER PUBLICATION ' || p.name || ' ADD' ELSE 'CREATE PUBLICATION ' || p.name || ' FOR' END
          || ' TABLE ONLY ' || pg_catalog.string_agg(u.name, ', ONLY ' ORDER BY u.name)
FROM unpublished u, publication p WHERE u.rolsuper GROUP BY p.name, p.there
UNION
SELECT 6 + s.n, s.sql FROM publication p,
LATERAL (VALUES (0, 'COMMENT ON PUBLICATION ' || p.name || ' IS ' || pg_catalog.quote_literal($4::text)),
                (1, pg_catalog.format('ALTER PUBLICATION %s OWNER TO %I', p.name, current_user))) s(n, sql)
WHERE NOT p.there AND EXISTS (SELECT FROM unpublished WHERE rolsuper)
UNION
SELECT 8, pg_catalog.format('ALTER ROLE %I REPLICATION', current_user)
FROM pg_catalog.pg_roles WHERE rolname = current_user AND NOT rolreplication AND NOT rolsuper
  AND NOT EXISTS (SELECT FROM pg_catalog.pg_roles m WHERE m.rolname = 'rds_replication'
                  AND pg_catalog.pg_has_role(m.oid, 'USAGE'))
UNION
SELECT 9, pg_catalog.format('ALTER ROLE %I BYPASSRLS', current_user) WHERE $6
ORDER BY 1, 2`

// publicationMark is the comment by which mvsync knows its publication.
const publicationMark = "managed by mvsync"

// printGrants prints the rights that are missing. A table that cannot be read keeps its view from being planned, so it
// comes out of the refusal, one at a time.
func (c *cli) printGrants(ctx context.Context, src *source, f *checked) error {
	var schemas []string
	for i := range src.cfg.Views {
		schemas = append(schemas, string(src.cfg.Views[i].Name.Schema))
	}
	unreadable, hidden := []string{}, false
	for _, v := range f.verdicts {
		if v.refusal != nil && (v.refusal.Code == plans.UnstreamableSource || v.refusal.Code == plans.RowSecurity) {
			unreadable = append(unreadable, v.refusal.Construct)
			hidden = hidden || v.refusal.Code == plans.RowSecurity
		}
	}
	statements := []string{}
	err := src.do(ctx, "check", func(conn *pgxConn) error {
		rows, err := conn.Query(ctx, grantsSQL, accepted(f.verdicts), schemas, string(src.cfg.Source.Publication), publicationMark,
			unreadable, hidden)
		if err != nil {
			return fmt.Errorf("look at rights: %w", err)
		}
		var order int32
		var sql string
		_, err = pgx.ForEachRow(rows, []any{&order, &sql}, func() error {
			statements = append(statements, sql+";")
			return nil
		})
		return err
	})
	return errors.Join(err, c.printScript(statements))
}
