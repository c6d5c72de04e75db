package plans

import "strings"

// stableNames are builtin functions that Postgres calls STABLE, whose results
// depend on nothing but their arguments and settings that mvsync pins. Whole
// families are admitted by name; stableExcept takes single ones out again.
var stableNames = wordSet(
	// The time zone, DateStyle and IntervalStyle are pinned: conversions between
	// points in time and local time, and what computes with both.
	`date time timestamp timestamptz timezone date_trunc date_part extract date_bin make_timestamptz overlaps
	to_char to_date to_timestamp to_number in_range generate_series interval_pl_timestamptz timestamptz_pl_interval
	timestamptz_mi_interval date_add date_subtract`,
	`date_cmp_timestamptz date_eq_timestamptz date_ge_timestamptz date_gt_timestamptz date_le_timestamptz
	date_lt_timestamptz date_ne_timestamptz timestamp_cmp_timestamptz timestamp_eq_timestamptz
	timestamp_ge_timestamptz timestamp_gt_timestamptz timestamp_le_timestamptz timestamp_lt_timestamptz
	timestamp_ne_timestamptz timestamptz_cmp_date timestamptz_eq_date timestamptz_ge_date timestamptz_gt_date
	timestamptz_le_date timestamptz_lt_date timestamptz_ne_date timestamptz_cmp_timestamp timestamptz_eq_timestamp
	timestamptz_ge_timestamp timestamptz_gt_timestamp timestamptz_le_timestamp timestamptz_lt_timestamp
	timestamptz_ne_timestamp`,
	// Values to text and back: they are STABLE for the same settings, or because
	// they call the functions of whatever type they are given. Enum labels belong
	// to the fingerprint. Text such as 'now' that becomes a time is the caller's.
	`date_in date_out time_in time_out timestamp_in timestamp_out timestamptz_in timestamptz_out timetz_out
	interval_in interval_out cash_in cash_out money numeric array_in array_out anyarray_out range_in range_out
	anyrange_out multirange_in multirange_out anymultirange_out record_in record_out domain_in enum_in enum_out
	anyenum_out enum_first enum_last enum_range xml_in xml xml_is_well_formed`,
	// Text and documents made of any values, for the same reason.
	`concat concat_ws format textanycat anytextcat array_to_string quote_literal quote_nullable array_to_json
	row_to_json to_json to_jsonb json_build_array json_build_object jsonb_build_array jsonb_build_object
	json_agg jsonb_agg json_object_agg jsonb_object_agg json_agg_strict jsonb_agg_strict json_object_agg_strict
	json_object_agg_unique json_object_agg_unique_strict jsonb_object_agg_strict jsonb_object_agg_unique
	jsonb_object_agg_unique_strict json_populate_record json_populate_recordset jsonb_populate_record
	jsonb_populate_recordset json_to_record json_to_recordset jsonb_to_record jsonb_to_recordset
	jsonb_path_exists_tz jsonb_path_match_tz jsonb_path_query_array_tz jsonb_path_query_first_tz
	jsonb_path_query_tz`,
	// The encoding belongs to the database.
	`convert convert_from convert_to length getdatabaseencoding`,
	// default_text_search_config is pinned.
	`to_tsvector to_tsquery plainto_tsquery phraseto_tsquery websearch_to_tsquery json_to_tsvector jsonb_to_tsvector
	ts_headline ts_match_tq ts_match_tt`,
)

// stableExcept read the clock although their family does not: the zone's offset
// for a time of day is today's.
var stableExcept = map[string]bool{
	"timezone(text, time with time zone)":     true,
	"timezone(interval, time with time zone)": true,
	"timezone(time with time zone)":           true,
}

// orderSensitive aggregates depend on the order of their input.
var orderSensitive = wordSet(`array_agg string_agg json_agg jsonb_agg xmlagg json_object_agg jsonb_object_agg json_agg_strict
	jsonb_agg_strict json_object_agg_strict jsonb_object_agg_strict json_object_agg_unique json_object_agg_unique_strict
	jsonb_object_agg_unique jsonb_object_agg_unique_strict json_arrayagg json_objectagg any_value`)

// orderSensitiveWindow functions tell peers apart.
var orderSensitiveWindow = wordSet(`row_number first_value last_value nth_value lag lead ntile`)

// floatSensitive aggregates over floats depend on the order of addition.
var floatSensitive = wordSet(`sum avg variance var_pop var_samp stddev stddev_pop stddev_samp corr covar_pop covar_samp
	regr_avgx regr_avgy regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy`)

func wordSet(lists ...string) map[string]bool {
	out := make(map[string]bool)
	for _, l := range lists {
		for w := range strings.FieldsSeq(l) {
			out[w] = true
		}
	}
	return out
}

// isStableBuiltin reports whether a STABLE builtin gives the same result for the
// same arguments under the pinned settings.
func isStableBuiltin(f *function) bool {
	return f.Schema == "pg_catalog" && stableNames[f.Name] && !stableExcept[f.Name+"("+f.Args+")"]
}
