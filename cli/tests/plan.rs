//! `plan`: what runs take, and what a model takes.

mod common;

use common::*;
use serde_json::Value;

fn plan(arguments: &[&str]) -> Value {
    run(&[&["plan", "--json"], arguments].concat()).expect(0).json().swap_remove(0)
}

#[test]
fn every_line_says_why() {
    let ran = run(&["plan"]).expect(0);
    assert!(ran.stderr.is_empty(), "{}", ran.stderr);
    for line in ran.stdout.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        assert!(fields.len() == 3 && fields.iter().all(|f| !f.is_empty()), "{line}");
    }
    for name in ["profile", "threads", "tokens of a batch", "memory of the run", "watchdog", "end below"] {
        assert!(ran.stdout.lines().any(|l| l.starts_with(&format!("{name}\t"))), "{name}: {}", ran.stdout);
    }
    assert!(!ran.stdout.contains("model: "));
}

#[test]
fn profiles_and_threads_can_be_chosen() {
    let of = |arguments: &[&str]| {
        let plan = plan(arguments);
        let value = |name: &str| plan["embedding"][name]["value"].as_u64().unwrap();
        (plan["profile"].as_str().unwrap().to_string(), value("threads"), value("max_batch_tokens"))
    };
    assert_eq!(of(&["--profile", "proof"]), ("proof".to_string(), 1, 512));
    assert_eq!(of(&["--profile", "ci", "--threads", "3"]), ("ci".to_string(), 3, 512));
    let (profile, threads, tokens) = of(&[]);
    assert_eq!((profile.as_str(), tokens), ("throughput", 512));
    let devices = run(&["devices", "--json"]).expect(0).json().swap_remove(0);
    assert!(threads <= devices["physical_cores"].as_u64().unwrap());
    let from_environment =
        kin_infer().args(["plan", "--json"]).env("KIN_RESOURCE_PROFILE", "interactive").output().unwrap();
    let found: Value = serde_json::from_slice(&from_environment.stdout).unwrap();
    assert_eq!((&found["profile"], &found["watchdog"]["enabled"]["value"]), (&"interactive".into(), &false.into()));
    assert_eq!(found["schema_version"], 1);
}

#[test]
fn a_models_memory_is_told_without_loading_it() {
    let model = fixture("st-tiny").display().to_string();
    let found = plan(&["--model", &model]);
    let memory = |name: &str| found["model"][name]["value"].clone();
    let bytes = |name: &str| memory(name).as_u64().unwrap();
    let inspected = run(&["inspect", &model, "--json"]).expect(0).json().swap_remove(0);
    let matrices = inspected["weight_bytes"].as_u64().unwrap();
    assert!((matrices..=matrices + matrices / 8).contains(&bytes("matrices")), "{} of {matrices}", bytes("matrices"));
    assert_eq!(found["embedding"]["max_seq_len"]["value"], inspected["window"]["tokens"]);
    assert_eq!(memory("kv_bytes_per_token"), Value::Null, "an encoder");
    assert_eq!(memory("fits"), Value::Bool(true));
    let parts = ["process", "matrices", "vectors", "tables", "activations", "scratch"].map(bytes);
    // What no account knows is the threads', above all: no more than a few MiB each.
    let allowance = found["model"]["peak"]["inputs"]["allowance_bytes"].as_u64().unwrap();
    let threads = found["embedding"]["threads"]["value"].as_u64().unwrap();
    assert_eq!(bytes("peak"), parts.iter().sum::<u64>() + allowance);
    assert!((1 << 20..=(8 << 20) + (4 << 20) * threads).contains(&allowance), "{allowance} of {threads} threads");
    // A byte a value, and a scale and a sum a column, in place of four.
    let int8 = plan(&["--model", &model, "--precision", "int8"]);
    let int8_matrices = int8["model"]["matrices"]["value"].as_u64().unwrap();
    let loaded = kin_infer::Embedder::load_with_precision(model.as_ref(), kin_infer::Precision::Int8).unwrap();
    let (packed, exact) = (loaded.model().weight_bytes() as u64, bytes("matrices"));
    assert!((packed..=packed + packed / 8).contains(&int8_matrices), "{int8_matrices} of {packed}");
    assert!(int8_matrices < exact / 2, "{int8_matrices} of {exact}");
    let text = run(&["plan", "--model", &model]).expect(0).stdout;
    assert!(text.lines().any(|l| l.starts_with("model: fits\tyes\t")), "{text}");

    // A decoder keeps keys and values.
    let decoder = fixture("llama-gqa");
    let config: Value = serde_json::from_slice(&std::fs::read(decoder.join("config.json")).unwrap()).unwrap();
    let number = |name: &str| config[name].as_u64();
    let (heads, layers) = (number("num_attention_heads").unwrap(), number("num_hidden_layers").unwrap());
    let dim = number("head_dim").unwrap_or(number("hidden_size").unwrap() / heads);
    let kv_heads = number("num_key_value_heads").unwrap_or(heads);
    let expected = layers * kv_heads * (dim + dim.next_multiple_of(16)) * 4;
    let found = plan(&["--model", &decoder.display().to_string()]);
    assert_eq!(found["model"]["kv_bytes_per_token"]["value"], expected);
}

#[test]
fn what_is_not_understood_is_named() {
    let ran = run(&["plan", "--profile", "fastest"]).expect(2);
    assert!(ran.stderr.contains("expected proof, interactive, throughput, ci"), "{}", ran.stderr);
    for (name, value) in [("KIN_RESOURCE_PROFILE", "fastest"), ("KIN_EMBED_MIN_RATE", "-3")] {
        let output = kin_infer().arg("plan").env(name, value).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains(name) && stderr.contains(value), "{stderr}");
    }
    let ran = run(&["plan", "--model", &fixture("tokenizer").display().to_string()]).expect(1);
    assert!(ran.stderr.contains("config.json"), "{}", ran.stderr);
}
