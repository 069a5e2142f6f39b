//! Parquet: what `embed` writes, and `search` over it.

mod common;

use std::path::Path;

use common::runs::*;
use common::*;
use serde_json::{Value, json};

/// Every row of a Parquet file, as JSON, by the crate's own reader of records.
fn parquet_rows(path: &Path) -> Vec<Value> {
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::Field;
    fn value(field: &Field) -> Value {
        match field {
            Field::Str(text) => json!(text),
            Field::Long(n) => json!(n),
            Field::Int(n) => json!(n),
            Field::UInt(n) => json!(n),
            Field::Bool(b) => json!(b),
            Field::Float(x) => json!(x),
            Field::ListInternal(list) => list.elements().iter().map(value).collect(),
            other => panic!("{other:?}"),
        }
    }
    let reader = SerializedFileReader::new(std::fs::File::open(path).unwrap()).unwrap();
    let row = |row: parquet::record::Row| {
        row.get_column_iter()
            .map(|(name, field)| (name.clone(), value(field)))
            .collect::<serde_json::Map<_, _>>()
            .into()
    };
    reader.get_row_iter(None).unwrap().map(|r| row(r.unwrap())).collect()
}

#[test]
fn parquet_has_the_same_values_and_search_finds_the_same() {
    let folder = scratch("parquet");
    let input = documents(&folder, 700);
    for (name, more, query) in [
        ("st-tiny", &["--counts"][..], &[][..]),
        ("st-tiny", &["--pooling", "none", "--counts"], &["--pooling", "none"]),
        ("st-splade-top", &[], &[]),
    ] {
        let model = fixture(name).display().to_string();
        let docs = input.display().to_string();
        for file in ["out.jsonl", "out.parquet"] {
            let file = folder.join(file).display().to_string();
            run(&[&["embed", "--model", &model, "--input", &docs, "--output", &file][..], more].concat()).expect(1);
        }
        let text = std::fs::read_to_string(folder.join("out.jsonl")).unwrap();
        let mut lines: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        lines.iter_mut().for_each(|line| drop(line.as_object_mut().unwrap().remove("tokens")));
        let single = |v: &Value| -> Value { floats(v).into_iter().map(|f| json!(f)).collect() };
        for line in &mut lines {
            for key in ["embedding", "values"] {
                if line.get(key).is_some() {
                    line[key] = single(&line[key]);
                }
            }
            if let Some(rows) = line.get("embeddings") {
                line["embeddings"] = rows.as_array().unwrap().iter().map(single).collect();
            }
        }
        assert!(parquet_rows(&folder.join("out.parquet")) == lines, "{name} {more:?}");
        let found = |file: &str| {
            let file = folder.join(file).display().to_string();
            let search = ["search", "--model", &model, "--embeddings", &file, "--top", "50"];
            run(&[&search[..], query, &["the parser"]].concat()).expect(0).stdout
        };
        let best = found("out.jsonl");
        assert!(best.lines().count() == 50 && best == found("out.parquet"), "{name} {more:?}");
    }
    let parquet = folder.join("out.parquet").display().to_string();
    let ran = run(&["search", "--model", &model(), "--embeddings", &parquet, "q"]).expect(1);
    assert!(ran.stderr.contains("row 0: sparse vectors"), "{}", ran.stderr);
    // Ids that are all whole numbers stay numbers; mixed with others they become text.
    for (ids, expected) in
        [("1 -2 9007199254740993", json!([1, -2, 9_007_199_254_740_993i64])), ("1 \"x\"", json!(["1", "x"]))]
    {
        let lines: String = ids.split(' ').map(|id| format!("{{\"id\": {id}, \"text\": \"a\"}}\n")).collect();
        let arguments = ["embed", "--model", &model(), "--input-format", "jsonl", "--output", &parquet];
        run_with_input(&arguments, lines.as_bytes()).expect(0);
        let found: Value = parquet_rows(Path::new(&parquet)).iter().map(|r| r["id"].clone()).collect();
        assert_eq!(found, expected);
        let searched =
            run(&["search", "--model", &model(), "--embeddings", &parquet, "--format", "json", "a"]).expect(0);
        assert_eq!(searched.json().iter().map(|r| r["id"].clone()).collect::<Value>(), expected);
    }
    run_with_input(&["embed", "--model", &model(), "--output", &parquet], b"").expect(0);
    assert!(parquet_rows(Path::new(&parquet)).is_empty());
    assert_eq!(run(&["search", "--model", &model(), "--embeddings", &parquet, "q"]).expect(0).stdout, "");
}

/// No byte of a Parquet file makes `search` panic, whatever it is.
#[test]
fn damaged_parquet_files_are_refused_or_read() {
    let folder = scratch("damaged");
    let file = folder.join("out.parquet");
    let path = file.display().to_string();
    run(&["embed", "--model", &model(), "--output", &path, "a", "b"]).expect(0);
    let whole = std::fs::read(&file).unwrap();
    let mut random = Random(11);
    for round in 0..60 {
        let mut bytes = whole.clone();
        if round % 4 == 0 {
            bytes.truncate(random.below(whole.len() as u64) as usize);
        } else {
            // The footer at the end says how the rest is to be read.
            let from = if round % 2 == 0 { 0 } else { whole.len() / 2 };
            let at = from + random.below((whole.len() - from) as u64) as usize;
            bytes[at] ^= 1 << random.below(8);
        }
        std::fs::write(&file, bytes).unwrap();
        let ran = run(&["search", "--model", &model(), "--embeddings", &path, "q"]);
        assert!(ran.code <= 1 && !ran.stderr.contains("panicked"), "round {round}: {}", ran.stderr);
    }
}
