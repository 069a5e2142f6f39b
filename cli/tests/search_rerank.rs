//! `search` over what `embed` writes, and `rerank`.

mod common;

use common::*;
use serde_json::{Value, json};

#[test]
fn search_finds_the_same_in_both_formats() {
    let folder = scratch("search");
    let model = fixture("st-tiny").display().to_string();
    let texts = ["Hello world", "searching the parser errors", "fn main", "searching the parser errors", "number"];
    for out in ["a.jsonl", "a.npy", "short.jsonl"] {
        let out_path = folder.join(out).display().to_string();
        let more = if out == "short.jsonl" { &["--dimensions", "8"][..] } else { &[] };
        run(&[&["embed", "--model", &model, "--output", &out_path], more, &texts].concat()).expect(0);
    }
    let path = |name: &str| folder.join(name).display().to_string();
    let search = |name: &str, more: &[&str]| {
        let query = "the parser searching";
        run(&[&["search", "--model", &model, "--embeddings", &path(name)], more, &[query]].concat())
    };
    let all = search("a.jsonl", &[]).expect(0);
    assert_eq!(all.stdout, search("a.npy", &[]).expect(0).stdout);
    let lines: Vec<(f32, &str)> =
        all.stdout.lines().map(|l| l.split_once('\t').unwrap()).map(|(s, id)| (s.parse().unwrap(), id)).collect();
    assert_eq!(lines.len(), 5);
    assert!(lines.is_sorted_by(|a, b| a.0 >= b.0), "{lines:?}");
    let place = |id: &str| lines.iter().position(|l| l.1 == id).unwrap();
    assert_eq!(place("3"), place("1") + 1, "equal scores keep the order of the file");
    // The scores are dot products with the query's vector.
    let query = run(&["embed", "--model", &model, "--prompt", "query", "the parser searching"]).expect(0);
    let query = floats(&query.json()[0]["embedding"]);
    let stored = std::fs::read_to_string(path("a.jsonl")).unwrap();
    for (line, i) in stored.lines().zip(0..) {
        let line: Value = serde_json::from_str(line).unwrap();
        let dot: f32 = query.iter().zip(floats(&line["embedding"])).map(|(a, b)| a * b).sum();
        assert!((lines[place(&format!("{i}"))].0 - dot).abs() < 1e-6);
    }
    let two = search("a.npy", &["--top", "2", "--format", "json"]).expect(0).json();
    assert_eq!(two.len(), 2);
    assert_eq!(two[0]["id"], lines[0].1);
    assert_eq!(two[0]["score"].as_f64().unwrap() as f32, lines[0].0);
    let wrong = search("short.jsonl", &[]).expect(1);
    assert!(wrong.stderr.contains("8 dimensions, but the query has 24"), "{}", wrong.stderr);
    assert_eq!(search("short.jsonl", &["--dimensions", "8"]).expect(0).stdout.lines().count(), 5);
}

#[test]
fn search_names_what_is_wrong_with_its_file() {
    let folder = scratch("search_files");
    let model = fixture("st-tiny").display().to_string();
    let (npy, jsonl) = (folder.join("v.npy").display().to_string(), folder.join("v.jsonl").display().to_string());
    run(&["embed", "--model", &model, "--output", &npy, "a", "b"]).expect(0);
    let ids = format!("{npy}.ids");
    for (content, message) in [("\"0\"\n", "line 2: missing"), ("\"0\"\n\"1\"\n\"2\"\n", "one id too many")] {
        std::fs::write(&ids, content).unwrap();
        let ran = run(&["search", "--model", &model, "--embeddings", &npy, "q"]).expect(1);
        assert!(ran.stderr.contains(message) && ran.stdout.is_empty(), "{}", ran.stderr);
    }
    std::fs::write(&ids, "\"0\"\n\"1\"\n").unwrap();
    let whole = std::fs::read(&npy).unwrap();
    std::fs::write(&npy, &whole[..whole.len() - 1]).unwrap();
    let ran = run(&["search", "--model", &model, "--embeddings", &npy, "q"]).expect(1);
    assert!(ran.stderr.contains("row 1 of 2"), "{}", ran.stderr);
    std::fs::write(&jsonl, "\n{\"id\": 1}\n").unwrap();
    let ran = run(&["search", "--model", &model, "--embeddings", &jsonl, "q"]).expect(1);
    assert!(ran.stderr.contains("line 2: expected"), "{}", ran.stderr);
}

/// Scores are those of `forward` on the pair's ids, which the reference confirms (tests/commands.rs), best first.
#[test]
fn rerank_sorts_by_the_scores_of_the_pairs() {
    for labels in [1, 3] {
        let folder = scratch(&format!("rerank{labels}"));
        let model = folder.join("model");
        classifier(labels, &model);
        let model = model.display().to_string();
        let documents = ["b c", "z", "b c\nd", "q r s t", "b c"];
        // [CLS] 2, [SEP] 3, letters from 5.
        let letters =
            |text: &str| text.bytes().filter(u8::is_ascii_lowercase).map(|b| 5 + b - b'a').collect::<Vec<_>>();
        let pairs: Vec<Vec<u8>> = documents.iter().map(|d| [&[2, 5, 3], &letters(d)[..], &[3]].concat()).collect();
        let types: Vec<Vec<u8>> = pairs.iter().map(|p| [&[0; 3][..], &vec![1; p.len() - 3]].concat()).collect();
        let (tokens, out) = (folder.join("tokens.json"), folder.join("out.safetensors"));
        std::fs::write(&tokens, json!({"sequences": pairs, "type_ids": types}).to_string()).unwrap();
        let (tokens, out_text) = (tokens.display().to_string(), out.display().to_string());
        run(&["forward", "--model", &model, "--tokens", &tokens, "--output", &out_text]).expect(0);
        let scores: Vec<Vec<f64>> = (0..5).map(|i| tensor(&out, &format!("labels.{i}")).unwrap().1).collect();
        let mut order: Vec<usize> = (0..5).collect();
        order.sort_by(|a, b| scores[*b][0].total_cmp(&scores[*a][0]));

        let text = run(&[&["rerank", "--model", &model, "--query", "a"][..], &documents].concat()).expect(0);
        let expected: Vec<String> = order
            .iter()
            .map(|&i| format!("{}\t{i}\t{}", scores[i][0] as f32, documents[i].lines().next().unwrap()))
            .collect();
        assert_eq!(text.stdout.lines().collect::<Vec<_>>(), expected);
        assert_eq!(text.stderr.contains("3 labels"), labels == 3, "{}", text.stderr);

        let input: String = documents.iter().map(|d| format!("{}\n", json!({"id": d, "text": d}))).collect();
        let arguments = [
            "rerank",
            "--model",
            &model,
            "--query",
            "a",
            "--input",
            "-",
            "--input-format",
            "jsonl",
            "--format",
            "json",
        ];
        let lines = run_with_input(&arguments, input.as_bytes()).expect(0).json();
        for (line, &i) in lines.iter().zip(&order) {
            assert_eq!(line["id"], documents[i]);
            assert_eq!(line["score"].as_f64().unwrap() as f32, scores[i][0] as f32);
            if labels == 3 {
                assert_eq!(floats(&line["scores"]), scores[i].iter().map(|s| *s as f32).collect::<Vec<_>>());
            }
        }
        // [CLS] a [SEP] and [SEP] leave the window of 40 positions 36 letters.
        let (fits, longer) = ("b ".repeat(36), "b ".repeat(37));
        let arguments =
            ["rerank", "--model", &model, "--query", "a", "--counts", "--format", "json", &fits, &longer, "z"];
        let ran = run(&arguments).expect(0);
        let mut rows = ran.json();
        rows.sort_by_key(|row| row["id"].as_str().unwrap().to_string());
        let counts: Vec<_> = rows.iter().map(|row| (row["token_count"].clone(), row["truncated"].clone())).collect();
        let count = |tokens: usize, cut: bool| (json!(tokens), json!(cut));
        assert_eq!(counts, [count(40, false), count(40, true), count(5, false)]);
        assert!(ran.stderr.contains("pairs longer than 40 tokens") && ran.stderr.contains("the first is id 1"));
        assert!(ran.stderr.contains(", 1 cut to the window"), "{}", ran.stderr);
        let text = run(&["rerank", "--model", &model, "--query", "a", "--counts", "b c"]).expect(0).stdout;
        assert!(text.trim_end().ends_with("\t0\t6\tfalse\tb c"), "{text}");
        let ran = run_with_input(&["rerank", "--model", &model, "--query", "a"], b"b\n\xff\n").expect(1);
        assert!(ran.stdout.lines().count() == 1 && ran.stderr.contains("line 2"), "{}", ran.stderr);
    }
    let ran = run(&["rerank", "--model", &fixture("st-tiny").display().to_string(), "--query", "a", "b"]).expect(1);
    assert!(ran.stderr.contains("ForSequenceClassification"), "{}", ran.stderr);
}
