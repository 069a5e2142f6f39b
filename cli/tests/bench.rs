//! `bench`: rows, shares, operations, and requests on stdin. What is asserted is what was counted, never a speed.

mod common;

use common::*;
use serde_json::{Value, json};

fn model(name: &str) -> String {
    fixture(name).display().to_string()
}

/// The rows of one JSON object on stdout.
fn rows(arguments: &[&str]) -> Vec<Value> {
    let ran = run(&[&["bench", "--rounds", "1", "--format", "json"], arguments].concat()).expect(0);
    let printed = ran.json();
    assert_eq!(printed.len(), 1, "{}", ran.stdout);
    printed[0]["rows"].as_array().unwrap().clone()
}

fn operation<'a>(row: &'a Value, name: &str) -> &'a Value {
    let operations = row["operations"].as_array().unwrap();
    operations.iter().find(|o| o["name"] == name).unwrap_or_else(|| panic!("no `{name}` in {operations:#?}"))
}

#[test]
fn an_encoder_is_measured_with_every_number_of_threads() {
    let rows = rows(&["--model", &model("bert-base"), "--lengths", "4,16", "--threads", "1,2"]);
    let of = |field: &str| rows.iter().map(|row| row[field].clone()).collect::<Vec<_>>();
    assert_eq!(of("threads"), [json!(1), json!(1), json!(2), json!(2)]);
    assert_eq!(of("texts"), [json!(256), json!(64), json!(256), json!(64)]);
    assert!(rows.iter().all(|row| row["tokens"] == 1024 && row["limit"] == "f32 flops"));
    let config: Value =
        serde_json::from_str(&std::fs::read_to_string(fixture("bert-base").join("config.json")).unwrap()).unwrap();
    let size = |key: &str| config[key].as_f64().unwrap();
    let (hidden, inner, layers) = (size("hidden_size"), size("intermediate_size"), size("num_hidden_layers"));
    for (row, length) in rows.iter().zip([4.0, 16.0, 4.0, 16.0]) {
        // Queries, keys, values and output; the feed-forward block; scores and values of each pair of tokens.
        let a_token = 2.0 * (4.0 * hidden * hidden + 2.0 * hidden * inner) + 4.0 * length * hidden;
        assert_eq!(row["work"], json!(1024.0 * layers * a_token), "{row:#}");
        let share = &row["share_of_limit"];
        if !share.is_null() {
            assert!(share["median"].as_f64().unwrap() > 0.0 && share["median"].as_f64().unwrap() <= 1.5, "{row:#}");
        }
        let down = operation(row, &format!("matmul, add, norm {inner} -> {hidden}"));
        assert_eq!(down["flops"], json!(1024.0 * layers * 2.0 * hidden * inner));
        let shares = row["operations"].as_array().unwrap().iter().map(|o| o["share_of_time"].as_f64().unwrap());
        assert!((shares.sum::<f64>() - 1.0).abs() < 1e-9, "{row:#}");
    }
}

#[test]
fn texts_of_a_file_are_measured_and_printed_as_tables() {
    let texts = scratch("bench-texts").join("texts.jsonl");
    std::fs::write(&texts, "{\"text\": \"some words\"}\n{\"text\": \"to embed\"}\n").unwrap();
    let texts = texts.display().to_string();
    let arguments = ["bench", "--model", &model("st-tiny"), "--input", &texts, "--threads", "1", "--rounds", "1"];
    let plain = run(&arguments).expect(0).stdout;
    assert!(plain.contains(&format!("| 2 texts of {texts} | 1 |")), "{plain}");
    assert!(!plain.contains("| operation |"), "{plain}");
    let profile = run(&[&arguments[..], &["--profile"]].concat()).expect(0).stdout;
    assert!(profile.contains("| operation | calls |") && profile.contains("\n| attention | "), "{profile}");
    let bytes = rows(&["--model", &model("st-tiny"), "--input", &texts, "--threads", "1", "--precision", "int8"]);
    assert_eq!((&bytes[0]["texts"], &bytes[0]["limit"]), (&json!(2), &json!("f32 flops")));

    let missing = run(&["bench", "--model", &model("st-tiny"), "--input", "no.jsonl"]).expect(1);
    assert!(missing.stderr.contains("no.jsonl"), "{}", missing.stderr);
    let empty = scratch("bench-empty").join("empty.jsonl");
    std::fs::write(&empty, "").unwrap();
    let empty = run(&["bench", "--model", &model("st-tiny"), "--input", &empty.display().to_string()]).expect(1);
    assert!(empty.stderr.contains("no texts"), "{}", empty.stderr);
    run(&["bench", "--model", &model("st-tiny"), "--input", &texts, "--lengths", "4"]).expect(2);
    run(&["bench", "--model", &model("st-tiny"), "--lengths", "4,0"]).expect(2);
    run(&["bench", "--model", &model("st-tiny"), "--serve", "--threads", "1,2"]).expect(2);
}

#[test]
fn a_decoder_is_measured_with_its_prompt_and_its_tokens() {
    let arguments = ["--model", &model("llama-gqa"), "--prompt-tokens", "12", "--new-tokens", "3", "--threads", "1"];
    let rows = rows(&arguments);
    let of = |field: &str| rows.iter().map(|row| row[field].clone()).collect::<Vec<_>>();
    assert_eq!(of("tokens"), [json!(12), json!(3)]);
    assert_eq!(of("limit"), [json!("f32 flops"), json!("bytes read")]);
    let appended = |row: &Value| operation(row, "append keys")["calls"].as_f64().unwrap();
    assert_eq!(appended(&rows[1]), 3.0 * appended(&rows[0]), "one call a layer and step");
    let embedded = rows_of_work(&["--model", &model("llama-gqa"), "--work", "embed", "--lengths", "5"]);
    assert_eq!(embedded, ["205 sequences of 5 tokens"]);
    let refused = run(&["bench", "--model", &model("bert-base"), "--work", "generate"]).expect(1);
    assert!(refused.stderr.contains("no decoder's head"), "{}", refused.stderr);
}

fn rows_of_work(arguments: &[&str]) -> Vec<String> {
    let with = [arguments, &["--threads", "1"]].concat();
    rows(&with).iter().map(|row| row["name"].as_str().unwrap().to_string()).collect()
}

#[test]
fn requests_on_stdin_are_answered_with_the_vectors_of_embed() {
    let folder = scratch("bench-serve");
    let (texts, out) = (folder.join("texts.jsonl"), folder.join("vectors.f32"));
    let lines: Vec<String> = (0..5).map(|i| json!({"text": "some words ".repeat(1 + i)}).to_string()).collect();
    std::fs::write(&texts, lines.join("\n")).unwrap();
    let arguments = ["bench", "--model", &model("st-tiny"), "--serve", "--threads", "1"];
    let requests = [
        json!({"cmd": "corpus", "path": texts}),
        json!({"cmd": "run", "out": out}),
        json!({"cmd": "run", "sort": false, "batch": 2, "out": folder.join("by-two.f32")}),
        json!({"cmd": "quit"}),
    ];
    let requests: Vec<String> = requests.iter().map(Value::to_string).collect();
    let ran = run_with_input(&arguments, requests.join("\n").as_bytes()).expect(0);
    let events: Vec<Value> = ran.json().iter().map(|line| line["event"].clone()).collect();
    assert_eq!(events, ["ready", "corpus", "done", "done"]);
    assert_eq!((&ran.json()[2]["texts"], &ran.json()[1]["texts"]), (&json!(5), &json!(5)));
    let embedded = run(&["embed", "--model", &model("st-tiny"), "--input", &texts.display().to_string()]).expect(0);
    let vectors: Vec<u8> =
        embedded.json().iter().flat_map(|line| floats(&line["embedding"])).flat_map(f32::to_le_bytes).collect();
    assert_eq!(std::fs::read(&out).unwrap(), vectors);
    assert_eq!(std::fs::read(folder.join("by-two.f32")).unwrap(), vectors);
    let wrong = run_with_input(&arguments, b"{\"cmd\": \"dance\"}\n").expect(1);
    assert!(wrong.stderr.contains("dance"), "{}", wrong.stderr);
}
