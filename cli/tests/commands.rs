//! `forward`, `inspect`, `fingerprint`, `devices`, `env` and the help.

mod common;

use common::*;
use serde_json::{Value, json};

#[test]
fn forward_gives_the_reference() {
    for name in ["bert-base", "bert-classifier-1", "bert-classifier-3"] {
        let folder = scratch(&format!("forward-{name}"));
        let all = |part: &str| (0..).map_while(|i| ids(name, &format!("input.{i}.{part}"))).collect::<Vec<_>>();
        let (sequences, types) = (all("ids"), all("types"));
        let (tokens, out) = (folder.join("tokens.json"), folder.join("out.safetensors"));
        std::fs::write(&tokens, json!({"sequences": sequences, "type_ids": types}).to_string()).unwrap();
        let model = fixture(name).display().to_string();
        let (tokens, out_text) = (tokens.display().to_string(), out.display().to_string());
        let ran = run(&["forward", "--model", &model, "--tokens", &tokens, "--output", &out_text]).expect(0);
        assert_eq!(ran.stdout, "");
        for (i, sequence) in sequences.iter().enumerate() {
            let (shape, hidden) = tensor(&out, &format!("hidden.{i}")).unwrap();
            assert_eq!(shape[0], sequence.len());
            assert_close(&format!("{name} hidden.{i}"), hidden, &expected(name, &format!("seq.{i}.hidden")).unwrap());
            let labels = tensor(&out, &format!("labels.{i}")).map(|(_, values)| values);
            assert_eq!(labels.is_some(), name != "bert-base");
            if let Some(labels) = labels {
                let reference = expected(name, &format!("seq.{i}.labels")).unwrap();
                assert_close(&format!("{name} labels.{i}"), labels, &reference);
            }
        }
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 2, "no partial file is left");
    }
}

#[test]
fn forward_names_what_is_wrong_with_its_tokens() {
    let folder = scratch("forward-wrong");
    let (tokens, out) = (folder.join("tokens.json"), folder.join("out.safetensors"));
    let model = fixture("bert-base").display().to_string();
    let arguments = [
        "forward",
        "--model",
        &model,
        "--tokens",
        &tokens.display().to_string(),
        "--output",
        &out.display().to_string(),
    ];
    for (content, message) in [
        ("{\"sequences\": [[1, -2]]}", "line 1 column"),
        ("{\"sequences\": [[1]], \"type_ids\": []}", "1 `sequences` but 0 `type_ids`"),
        ("{\"sequences\": [[1]], \"type_ids\": [[0, 0]]}", "sequence 0: 1 token ids but 2"),
        ("{\"sequence\": [[1]]}", "unknown field `sequence`"),
    ] {
        std::fs::write(&tokens, content).unwrap();
        let ran = run(&arguments).expect(1);
        assert!(ran.stderr.contains(message), "{message}: {}", ran.stderr);
        assert!(!out.exists());
    }
    // A sequence beyond the vocabulary fails alone.
    std::fs::write(&tokens, "{\"sequences\": [[2, 5, 3], [5000], []]}").unwrap();
    let ran = run(&arguments).expect(1);
    assert!(ran.stderr.contains("sequence 1: token id 5000") && ran.stderr.contains("sequence 2:"), "{}", ran.stderr);
    assert!(tensor(&out, "hidden.0").is_some() && tensor(&out, "hidden.1").is_none());
}

#[test]
fn the_fingerprint_depends_on_the_model_alone() {
    let sets: Value = serde_json::from_str(&run(&["devices", "--json"]).expect(0).stdout).unwrap();
    let sets: Vec<String> = serde_json::from_value(sets["instruction_sets"].clone()).unwrap();
    assert!(sets.contains(&"scalar".to_string()));
    let mut all = Vec::new();
    for name in ["bert-base", "bert-classifier-1", "st-tiny"] {
        let model = fixture(name).display().to_string();
        let print = |isa: &str, threads: &str| {
            let mut command = kin_infer();
            command.args(["fingerprint", "--model", &model, "--threads", threads]).env("KIN_INFER_CPU_ISA", isa);
            let output = command.output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).unwrap()
        };
        let first = print(&sets[0], "2");
        let (digits, named) = first.trim_end().split_once("  ").unwrap();
        assert!(digits.len() == 64 && digits.bytes().all(|b| b.is_ascii_hexdigit()), "{first}");
        assert_eq!(named, model);
        for (isa, threads) in sets.iter().flat_map(|isa| [(isa, "1"), (isa, "2")]) {
            assert_eq!(print(isa, threads), first, "{isa}, {threads} threads");
        }
        all.push(digits.to_string());
    }
    assert!(all[0] != all[1] && all[1] != all[2]);
    let mut command = kin_infer();
    command.args(["fingerprint", "--model", &fixture("bert-base").display().to_string()]);
    let output = command.env("KIN_INFER_CPU_ISA", "mmx").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("`mmx` is not available"));
}

#[test]
fn inspect_tells_what_is_there() {
    let inspect = |name: &str, more: &[&str]| {
        let model = fixture(name).display().to_string();
        run(&[&["inspect", &model][..], more].concat()).expect(0)
    };
    let json = |name: &str, more: &[&str]| inspect(name, &[more, &["--json"]].concat()).json().swap_remove(0);
    let tiny = json("st-tiny", &[]);
    assert_eq!(tiny["window"], json!({"tokens": 24, "source": "`max_seq_length` of sentence_bert_config.json"}));
    assert_eq!(tiny["modules"].as_array().unwrap().len(), 4);
    assert_eq!(tiny["assumptions"], json!([]));
    let base = json("bert-base", &["--tensors"]);
    assert_eq!((&base["model_type"], &base["window"]["tokens"]), (&json!("bert"), &json!(40)));
    assert_eq!(base["spec"]["layers"], "2 of 32 features");
    assert!(base["assumptions"].to_string().contains("no tokenizer"));
    let used = base["tensors_used"].as_array().unwrap();
    assert!(used.iter().any(|n| n.as_str().unwrap().ends_with("word_embeddings.weight")), "{used:?}");
    assert_eq!(json("bert-base", &[])["tensors_used"], used.len());
    assert!(base["parameter_bytes"].as_u64().unwrap() > 0 && base["weight_bytes"].as_u64().unwrap() > 0);
    assert_eq!(json("bert-classifier-3", &[])["modules"], json!([]));
    for line in inspect("st-tiny", &["--tensors"]).stdout.lines() {
        assert_eq!(line.split('\t').count(), 2, "{line}");
    }
    run(&["inspect", &fixture("tokenizer").display().to_string()]).expect(1);
}

#[test]
fn devices_and_environment_are_listed() {
    let text = run(&["devices"]).expect(0);
    assert!(text.stderr.is_empty() && text.stdout.lines().all(|l| l.split('\t').count() == 2), "{}", text.stdout);
    let devices = run(&["devices", "--json"]).expect(0).json().swap_remove(0);
    assert_eq!(devices["devices"].as_array().unwrap().last().unwrap()["backend"], "cpu");
    assert!(devices["physical_cores"].as_u64().unwrap() >= 1);
    let output = kin_infer().args(["env", "--json"]).env("KIN_INFER_CPU_ISA", "scalar").output().unwrap();
    let lines: Vec<Value> =
        output.stdout.split(|b| *b == b'\n').filter_map(|l| serde_json::from_slice(l).ok()).collect();
    let by_name = |name: &str| lines.iter().find(|l| l["name"] == name).unwrap();
    assert_eq!(by_name("KIN_INFER_CPU_ISA")["value"], "scalar");
    assert_eq!(by_name("KIN_INFER_FORCE_CPU")["value"], Value::Null);
    let text = run(&["env"]).expect(0).stdout;
    assert!(lines.iter().all(|l| text.contains(l["purpose"].as_str().unwrap())));
}

/// Every option says what it does, and every command shows how it is used.
#[test]
fn help_teaches() {
    let commands = ["embed", "search", "rerank", "forward", "inspect", "fingerprint", "devices", "env"];
    let top = run(&["--help"]).expect(0).stdout;
    for command in commands {
        assert!(top.contains(&format!("\n  {command} ")), "{command}");
        let help = run(&[command, "--help"]).expect(0);
        assert!(help.stderr.is_empty() && help.stdout.contains("Example"), "{command}");
        let lines: Vec<&str> = help.stdout.lines().collect();
        for (i, line) in lines.iter().enumerate().filter(|(_, l)| l.trim_start().starts_with("--")) {
            let told = line.trim_start().split_once("  ").is_some() || lines.get(i + 1).is_some_and(|l| !l.is_empty());
            assert!(told, "{command}: {line}");
        }
    }
}
