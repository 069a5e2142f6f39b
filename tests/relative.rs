//! Which row each distance takes, against what the reference library computes in float32: tests/fixtures/buckets.json,
//! which tools/fixtures/buckets.py writes and describes.

mod common;

use common::fixture;
use kin_infer::arch::{BucketSpec, DisentangledSpec, DistanceMap};
use serde_json::Value;

/// The tables of one family.
fn tables(family: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(fixture("buckets.json")).unwrap();
    let all: Value = serde_json::from_str(&text).unwrap();
    all[family].as_array().unwrap().clone()
}

fn number(table: &Value, key: &str) -> i64 {
    table[key].as_i64().unwrap()
}

/// Every distance of a table against a map; `row` turns a bucket of the table into a row.
fn check(what: &str, table: &Value, map: &DistanceMap, row: impl Fn(i64) -> i64) {
    let (first, reach) = (number(table, "first"), map.reach as i64);
    assert_eq!(map.rows.len() as i64, 2 * reach + 1, "{what}: rows");
    let buckets = table["buckets"].as_array().unwrap();
    assert!(first < -reach && first + buckets.len() as i64 - 1 > reach, "{what}: the table ends before the map");
    for (i, bucket) in buckets.iter().enumerate() {
        let distance = first + i as i64;
        let found = map.rows[(distance.clamp(-reach, reach) + reach) as usize];
        assert_eq!(i64::from(found), row(bucket.as_i64().unwrap()), "{what}: distance {distance}");
    }
}

fn bucket_spec(table: &Value) -> BucketSpec {
    let size = |key| number(table, key) as usize;
    BucketSpec { buckets: size("num_buckets"), max_distance: size("max_distance") }
}

/// The tables that are not bidirectional belong to T5's decoder.
#[test]
fn buckets_of_t5_and_mpnet_are_the_references() {
    let both_ways = |t: &Value| t.get("bidirectional").is_none_or(|b| b == true);
    let mut checked = 0;
    for family in ["t5", "mpnet"] {
        for table in tables(family).iter().filter(|t| both_ways(t)) {
            let spec = bucket_spec(table);
            check(&format!("{family}, {spec:?}"), table, &spec.map(), |bucket| bucket);
            checked += 1;
        }
    }
    assert_eq!(checked, 5);
}

fn disentangled(span: usize, log_buckets_to: Option<usize>) -> DisentangledSpec {
    DisentangledSpec {
        span,
        log_buckets_to,
        content_to_position: true,
        position_to_content: true,
        shared_projections: false,
        normed: false,
    }
}

#[test]
fn logarithmic_buckets_of_deberta_v2_are_the_references() {
    let tables = tables("deberta_v2");
    assert_eq!(tables.len(), 4);
    for table in &tables {
        let span = number(table, "num_buckets");
        let spec = disentangled(span as usize, Some(number(table, "max_distance") as usize));
        let row = |bucket: i64| (bucket + span).clamp(0, 2 * span - 1);
        check(&format!("{spec:?}"), table, &spec.map(), row);
    }
}

/// DeBERTa's distances without buckets: one row each, the outermost for those beyond.
#[test]
fn distances_without_buckets_have_a_row_each() {
    for span in [1, 4, 36] {
        let map = disentangled(span, None).map();
        let (reach, last) = (map.reach as i64, 2 * span as i64 - 1);
        assert!(map.reach == span, "{span}: reach {reach}");
        for (i, row) in map.rows.iter().enumerate() {
            let distance = i as i64 - reach;
            assert_eq!(i64::from(*row), (distance + span as i64).clamp(0, last), "span {span}, distance {distance}");
        }
    }
}
