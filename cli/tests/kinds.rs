//! One vector a token and sparse vectors: `embed`, `search` over what it wrote, and what is refused.

mod common;

use common::*;
use serde_json::{Value, json};

fn model(name: &str) -> String {
    fixture(name).display().to_string()
}

/// The texts of st-tiny as a file of JSON lines, with ids t0, t1, ...
fn documents(folder: &std::path::Path) -> (String, usize) {
    let texts: Vec<String> =
        serde_json::from_str(&std::fs::read_to_string(fixture("st-tiny/texts.json")).unwrap()).unwrap();
    let line = |(i, text): (usize, &String)| format!("{}\n", json!({"id": format!("t{i}"), "text": text}));
    let file = folder.join("docs.jsonl");
    std::fs::write(&file, texts.iter().enumerate().map(line).collect::<String>()).unwrap();
    (file.display().to_string(), texts.len())
}

fn rows(line: &Value) -> Vec<f32> {
    line["embeddings"].as_array().unwrap().iter().flat_map(floats).collect()
}

fn sparse(line: &Value, len: usize) -> Vec<f64> {
    let mut all = vec![0.0; len];
    let indices: Vec<usize> = serde_json::from_value(line["indices"].clone()).unwrap();
    assert!(indices.is_sorted_by(|a, b| a < b));
    indices.iter().zip(floats(&line["values"])).for_each(|(i, v)| all[*i] = v.into());
    all
}

#[test]
fn token_vectors_are_the_reference_in_both_formats() {
    let folder = scratch("tokens");
    let (docs, n) = documents(&folder);
    // The last is which texts have more tokens than the model takes.
    for (name, reference, more, cut) in [
        ("st-tiny", "st-poolings", &["--pooling", "none"][..], &[9][..]),
        ("st-colbert", "st-colbert", &["--prompt", "document"], &[9]),
        ("st-pylate", "st-pylate", &["--prompt", "query"], &[5, 9]),
    ] {
        let kind = if name == "st-tiny" { "tokens" } else { more[1] };
        let model = model(name);
        let ran = run(&[&["embed", "--model", &model, "--input", &docs, "--counts"][..], more].concat()).expect(0);
        let lines = ran.json();
        assert_eq!(lines.len(), n);
        for (i, line) in lines.iter().enumerate() {
            let expected = expected(reference, &format!("{kind}.{i}")).unwrap();
            assert_close(&format!("{name} {i}"), rows(line).into_iter().map(f64::from), &expected);
            let tokens = line["token_ids"].as_array().unwrap().len();
            assert_eq!((&line["id"], line["tokens"].as_array().unwrap().len()), (&json!(format!("t{i}")), tokens));
            assert_eq!(line["truncated"], cut.contains(&i), "{name} {i}");
        }
        let array = folder.join(format!("{name}.npy"));
        let output = array.display().to_string();
        run(&[&["embed", "--model", &model, "--input", &docs, "--output", &output][..], more].concat()).expect(0);
        let bytes = std::fs::read(&array).unwrap();
        let values: Vec<f32> =
            bytes[128..].chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        assert_eq!(values, lines.iter().flat_map(rows).collect::<Vec<_>>());
        let offsets = std::fs::read(folder.join(format!("{name}.npy.offsets"))).unwrap();
        assert!(
            String::from_utf8_lossy(&offsets[..128])
                .contains(&format!("'descr': '<i8', 'fortran_order': False, 'shape': ({},)", n + 1))
        );
        let offsets: Vec<i64> =
            offsets[128..].chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap())).collect();
        let mut ends = vec![0];
        lines.iter().for_each(|l| ends.push(ends[ends.len() - 1] + l["token_ids"].as_array().unwrap().len() as i64));
        assert_eq!(offsets, ends);
    }
}

#[test]
fn token_vectors_take_length_one_on_demand() {
    let ran =
        run(&["embed", "--model", &model("st-tiny"), "--pooling", "none", "--normalize", "Hello world"]).expect(0);
    let line = ran.json().swap_remove(0);
    assert_eq!(line["tokens"], json!(["[CLS]", "hello", "world", "[SEP]"]));
    for row in line["embeddings"].as_array().unwrap() {
        let norm: f32 = floats(row).iter().map(|v| v * v).sum();
        assert!((norm - 1.0).abs() < 1e-5, "{norm}");
    }
    let told = run(&["embed", "--model", &model("st-colbert"), "a"]).expect(0);
    assert!(told.stderr.contains("--prompt query, --prompt document"), "{}", told.stderr);
}

#[test]
fn sparse_vectors_are_the_reference() {
    let folder = scratch("sparse");
    let (docs, n) = documents(&folder);
    for (name, prompt, kind) in [("st-splade", &[][..], "text"), ("st-splade-top", &["--prompt", "query"], "query")] {
        let model = model(name);
        let arguments = [&["embed", "--model", &model, "--input", &docs, "--terms", "--counts"][..], prompt].concat();
        let ran = run(&arguments).expect(0);
        assert_eq!(ran.json().len(), n);
        for (i, line) in ran.json().iter().enumerate() {
            let expected = expected(name, &format!("{kind}.{i}")).unwrap();
            assert_close(&format!("{name} {i}"), sparse(line, 160), &expected);
            assert_eq!(line["terms"].as_array().unwrap().len(), line["indices"].as_array().unwrap().len());
            assert!(line["token_count"].as_u64().unwrap() <= 24);
        }
        assert!(ran.stderr.contains("1 cut to the window"), "{}", ran.stderr);
    }
    let few = run(&["embed", "--model", &model("st-splade"), "--top-k", "3", "hello"]).expect(0).json().swap_remove(0);
    assert!(few["indices"].as_array().unwrap().len() == 3 && few.get("terms").is_none(), "{few}");
}

/// Scores of `search` for every document, by id.
fn scores(name: &str, file: &str, more: &[&str]) -> std::collections::BTreeMap<String, f32> {
    let model = model(name);
    let arguments = ["search", "--model", &model, "--embeddings", file, "--top", "100", "--format", "json"];
    let ran = run(&[&arguments, more, &["searching the parser"]].concat()).expect(0);
    let lines = ran.json();
    let scores: Vec<f32> = lines.iter().map(|l| l["score"].as_f64().unwrap() as f32).collect();
    assert!(scores.is_sorted_by(|a, b| a >= b), "{scores:?}");
    lines.iter().zip(scores).map(|(l, s)| (l["id"].as_str().unwrap().to_string(), s)).collect()
}

#[test]
fn search_multiplies_sparse_vectors() {
    let folder = scratch("search-sparse");
    let (docs, n) = documents(&folder);
    let (name, stored) = ("st-splade-top", folder.join("v.jsonl").display().to_string());
    run(&["embed", "--model", &model(name), "--input", &docs, "--output", &stored, "--prompt", "document"]).expect(0);
    let query = run(&["embed", "--model", &model(name), "--prompt", "query", "searching the parser"]).expect(0).json();
    let query = sparse(&query[0], 160);
    let found = scores(name, &stored, &[]);
    assert_eq!(found.len(), n);
    for line in std::fs::read_to_string(&stored).unwrap().lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let product: f64 = sparse(&line, 160).iter().zip(&query).map(|(a, b)| a * b).sum();
        assert!((f64::from(found[line["id"].as_str().unwrap()]) - product).abs() < 1e-5);
    }
    assert!(found["t4"] > 0.0);
    // Of another kind, and malformed.
    let dense = run(&["search", "--model", &model("st-tiny"), "--embeddings", &stored, "q"]).expect(1);
    assert!(
        dense.stderr.contains("line 1: sparse vectors") && dense.stderr.contains("one vector a text"),
        "{}",
        dense.stderr
    );
    for (line, message) in [
        (json!({"id": 1, "indices": [1, 2], "values": [0.5]}), "2 `indices` but 1 `values`"),
        (json!({"id": 1, "indices": [2, 2], "values": [0.5, 0.5]}), "do not ascend"),
        (json!({"id": 1, "indices": [2]}), "expected `embedding`"),
        (json!({"id": 1, "embeddings": [[1.0], [1.0, 2.0]]}), "different lengths"),
    ] {
        std::fs::write(&stored, format!("{line}\n")).unwrap();
        let ran = run(&["search", "--model", &model(name), "--embeddings", &stored, "q"]).expect(1);
        assert!(ran.stderr.contains("line 1: ") && ran.stderr.contains(message), "{message}: {}", ran.stderr);
    }
}

#[test]
fn search_scores_token_vectors_by_max_sim() {
    let folder = scratch("search-tokens");
    let (docs, n) = documents(&folder);
    let path = |name: &str| folder.join(name).display().to_string();
    for (name, document, more) in [
        ("st-colbert", &["--prompt", "document"][..], &[][..]),
        ("st-tiny", &["--pooling", "none"], &["--pooling", "none"]),
    ] {
        for out in ["v.jsonl", "v.npy"] {
            let (model, out) = (model(name), path(out));
            run(&[&["embed", "--model", &model, "--input", &docs, "--output", &out], document].concat()).expect(0);
        }
        let found = scores(name, &path("v.jsonl"), more);
        assert_eq!((found.len(), &found), (n, &scores(name, &path("v.npy"), more)));
        let model = model(name);
        let query = [&["embed", "--model", &model, "--prompt", "query"], more, &["searching the parser"]].concat();
        let query = run(&query).expect(0).json().swap_remove(0);
        let best = |q: &Value, document: &Value| -> f64 {
            let dot =
                |d: &Value| floats(q).iter().zip(floats(d)).map(|(a, b)| f64::from(*a) * f64::from(b)).sum::<f64>();
            document["embeddings"].as_array().unwrap().iter().map(dot).fold(f64::MIN, f64::max)
        };
        for line in std::fs::read_to_string(path("v.jsonl")).unwrap().lines() {
            let line: Value = serde_json::from_str(line).unwrap();
            let expected: f64 = query["embeddings"].as_array().unwrap().iter().map(|q| best(q, &line)).sum();
            let score = f64::from(found[line["id"].as_str().unwrap()]);
            assert!((score - expected).abs() < 1e-4 * expected.abs().max(1.0), "{name}: {score}, expected {expected}");
        }
    }
    let ran = run(&["search", "--model", &model("st-tiny"), "--embeddings", &path("v.npy"), "q"]).expect(1);
    assert!(ran.stderr.contains("one vector a token (FILE.offsets is beside it)"), "{}", ran.stderr);
    std::fs::write(path("v.npy.offsets"), b"no array").unwrap();
    let arguments = ["search", "--model", &model("st-tiny"), "--pooling", "none", "--embeddings", &path("v.npy"), "q"];
    let ran = run(&arguments).expect(1);
    assert!(ran.stderr.contains("v.npy.offsets: not a NumPy array"), "{}", ran.stderr);
    std::fs::remove_file(path("v.npy.offsets")).unwrap();
    assert!(run(&arguments).expect(1).stderr.contains("embed --pooling none"));
}

#[test]
fn a_pooling_in_place_of_the_folders() {
    let folder = scratch("pooling");
    let plain = folder.join("plain");
    std::fs::create_dir_all(&plain).unwrap();
    for file in ["config.json", "model.safetensors", "tokenizer.json", "sentence_bert_config.json"] {
        std::fs::copy(fixture("st-tiny").join(file), plain.join(file)).unwrap();
    }
    let plain = plain.display().to_string();
    for (name, mode) in [
        ("cls", "cls"),
        ("max", "max"),
        ("mean", "mean"),
        ("last", "lasttoken"),
        ("mean-sqrt-len", "mean_sqrt_len_tokens"),
        ("weighted-mean", "weightedmean"),
    ] {
        let ran = run(&["embed", "--model", &plain, "--pooling", name, "Hello world"]).expect(0);
        // Without modules.json the vector is normalised besides.
        let expected = expected("st-poolings", &format!("{mode}.2")).unwrap();
        let norm = expected.iter().map(|v| v * v).sum::<f64>().sqrt();
        let expected: Vec<f64> = expected.iter().map(|v| v / norm).collect();
        assert_close(name, floats(&ran.json()[0]["embedding"]).into_iter().map(f64::from), &expected);
        assert!(ran.stderr.contains("no modules.json"), "{}", ran.stderr);
    }
    let ran = run(&["embed", "--model", &model("st-tiny"), "--pooling", "mean", "a"]).expect(1);
    assert!(ran.stderr.contains("give 32 values") && ran.stderr.contains("takes 96"), "{}", ran.stderr);
    let ran = run(&["embed", "--model", &model("st-tiny"), "--normalize", "a"]).expect(0);
    assert_eq!(
        ran.json()[0]["embedding"],
        run(&["embed", "--model", &model("st-tiny"), "a"]).expect(0).json()[0]["embedding"]
    );
}

#[test]
fn what_has_no_meaning_is_refused() {
    let sparse_npy = scratch("refused").join("v.npy");
    let output = sparse_npy.display().to_string();
    let (tiny, splade, colbert) = (model("st-tiny"), model("st-splade"), model("st-colbert"));
    for (arguments, message) in [
        (&["--model", &splade, "--output", &output, "a"][..], "no npy form"),
        (&["--model", &splade, "--format", "npy", "--output", "x", "a"], "no npy form"),
        (&["--model", &splade, "--normalize", "a"], "--normalize is for dense vectors; this makes sparse vectors"),
        (&["--model", &splade, "--dimensions", "8", "a"], "--dimensions is for one vector a text"),
        (&["--model", &colbert, "--dimensions", "8", "a"], "this makes one vector a token"),
        (&["--model", &tiny, "--top-k", "8", "a"], "--top-k is for sparse vectors; this makes one vector a text"),
        (&["--model", &tiny, "--pooling", "none", "--terms", "a"], "--terms is for sparse vectors"),
        (&["--model", &tiny, "--counts", "--output", &output, "a"], "--counts needs --format jsonl"),
        (&["--model", &tiny, "--pooling", "median", "a"], "median"),
    ] {
        let ran = run(&[&["embed"], arguments].concat()).expect(2);
        assert!(ran.stdout.is_empty() && ran.stderr.contains(message), "{arguments:?}: {}", ran.stderr);
    }
    for (arguments, message) in [
        (&["--model", &tiny, "--pooling", "splade", "a"][..], "cls.predictions.transform.dense.weight"),
        (&["--model", &splade, "--pooling", "mean", "a"], "--pooling splade"),
        (&["--model", &splade, "--pooling", "none", "a"], "this folder makes sparse vectors"),
        (&["--model", &colbert, "--pooling", "cls", "a"], "one vector a token: it has no pooling to replace"),
    ] {
        let ran = run(&[&["embed"], arguments].concat()).expect(1);
        assert!(ran.stdout.is_empty() && ran.stderr.contains(message), "{arguments:?}: {}", ran.stderr);
    }
    assert!(!sparse_npy.exists() && std::fs::read_dir(sparse_npy.parent().unwrap()).unwrap().next().is_none());
}
