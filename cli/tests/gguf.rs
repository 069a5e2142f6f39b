//! GGUF files as model arguments.

mod common;
#[path = "../../tests/gguf/writer.rs"]
#[allow(dead_code)] // the library's tests use the rest
mod writer;

use std::path::{Path, PathBuf};

use common::*;
use kin_infer::weights::Checkpoint;
use writer::Changed;

#[test]
fn a_gguf_file_is_a_model_for_every_command() {
    let file = fixture("gguf-st-tiny.gguf").display().to_string();
    let ran = run(&["inspect", &file]).expect(0);
    let line = |name: &str| {
        let start = format!("{name}\t");
        ran.stdout.lines().find(|l| l.starts_with(&start)).unwrap_or_default().to_string()
    };
    assert_eq!(line("model_type"), "model_type\tbert");
    assert_eq!(line("module"), "module\tpooling: mean");
    assert_eq!(line("tensor types"), "tensor types\t37 of F32");
    assert!(line("window").ends_with("the context length of the GGUF file"), "{}", ran.stdout);
    assert_eq!(line("assumed"), "");
    let vectors = run(&["embed", "--model", &file, "a text", "another"]).expect(0).json();
    assert_eq!(vectors.len(), 2);
    assert_eq!(floats(&vectors[0]["embedding"]).len(), 32);

    let folder = fixture("gguf-k-llama").join("model.gguf").display().to_string();
    let ran = run(&["inspect", &folder, "--tensors"]).expect(0);
    assert!(ran.stdout.contains("widened\tblk.0.attn_q.weight"), "{}", ran.stdout);
    assert!(
        ran.stdout.contains("tensor types\t5 of F32, 1 of Q4_1, 2 of Q4_K, 2 of Q5_K, 2 of Q6_K"),
        "{}",
        ran.stdout
    );
    assert!(ran.stdout.contains("assumed\tno tokenizer"), "{}", ran.stdout);
    let json = &run(&["inspect", &folder, "--json"]).expect(0).json()[0];
    assert_eq!((&json["tensors_widened"], &json["tensor_types"]["Q6_K"]), (&6.into(), &2.into()));

    let missing = run(&["inspect", "no.gguf"]).expect(1);
    assert!(missing.stderr.contains("no such"), "{}", missing.stderr);
}

/// A LLaMA with random weights, whose tokens are single characters, in a folder of its own.
fn decoder(folder: &Path) -> PathBuf {
    let mut file = Changed::of(&fixture("gguf-llama-gqa.gguf"));
    let checkpoint = Checkpoint::open_gguf(&fixture("gguf-llama-gqa.gguf")).unwrap();
    let rows = checkpoint.get("token_embd.weight").unwrap().shape()[0];
    let letters: Vec<String> = (0..rows).map(|i| char::from(b'A' + i as u8).into()).collect();
    let tokens: Vec<&str> = letters.iter().map(String::as_str).collect();
    file.text("tokenizer.ggml.model", "gpt2").text("tokenizer.ggml.pre", "gpt-2");
    file.texts("tokenizer.ggml.tokens", &tokens).texts("tokenizer.ggml.merges", &[]);
    file.text("tokenizer.chat_template", "{{ messages[0].content }}");
    let path = folder.join("m.gguf");
    std::fs::write(&path, file.bytes()).unwrap();
    path
}

#[test]
fn a_decoder_with_its_tokenizer_generates_text_also_for_ids_and_from_its_folder() {
    let folder = scratch("gguf-decoder");
    let file = decoder(&folder).display().to_string();
    let ids = folder.join("ids.json");
    std::fs::write(&ids, r#"{"sequences": [[7, 8, 9]]}"#).unwrap();
    let ids = ids.display().to_string();
    let generate = |model: &str, more: &[&str]| {
        let fixed = ["generate", "--quiet", "--max-new-tokens", "5", "--format", "json", "--model", model];
        run(&[&fixed[..], more].concat()).expect(0).json()[0]["sequences"][0].clone()
    };
    let told = generate(&file, &["--prompt", "HIJ"]);
    assert_eq!(told["tokens"].as_array().unwrap().len(), 5);
    assert_eq!(told["text"].as_str().unwrap().len(), 5, "{told}");
    for model in [&file, &folder.display().to_string()] {
        assert_eq!(generate(model, &["--prompt", "HIJ"]), told);
        assert_eq!(generate(model, &["--tokens", &ids]), told);
        assert_eq!(generate(model, &["--tokens", &ids, "--weights", "f32"]), told, "weights that are f32 already");
    }
    let bare = fixture("gguf-llama-gqa.gguf").display().to_string();
    let plain = generate(&bare, &["--tokens", &ids]);
    assert_eq!((&plain["tokens"], plain["text"].as_str()), (&told["tokens"], None));
    // Quantised weights give other scores than their values.
    let blocks = fixture("gguf-llama-linear-q4_0.gguf").display().to_string();
    let scores =
        |more: &[&str]| generate(&blocks, &[&["--tokens", &ids, "--logprobs", "1"], more].concat())["logprobs"].clone();
    assert_ne!(scores(&[]), scores(&["--weights", "f32"]));
    assert_eq!(scores(&[]), scores(&["--weights", "stored"]));
}

#[test]
fn inspect_tells_of_a_tokenizer_that_is_malformed() {
    let folder = scratch("gguf-inspect");
    let mut file = Changed::of(&fixture("gguf-st-tiny.gguf"));
    file.size("tokenizer.ggml.bos_token_id", 70_000);
    let path = folder.join("m.gguf");
    std::fs::write(&path, file.bytes()).unwrap();
    let ran = run(&["inspect", &path.display().to_string()]).expect(1);
    assert!(ran.stderr.contains("`tokenizer.ggml.bos_token_id` is 70000, expected one of the ids"), "{}", ran.stderr);
}

#[test]
fn several_gguf_files_in_a_folder_or_a_repository_are_listed() {
    let cache = scratch("gguf-hub");
    let snapshot = cache.join("models--owner--name/snapshots/0123");
    std::fs::create_dir_all(&snapshot).unwrap();
    std::fs::create_dir_all(cache.join("models--owner--name/refs")).unwrap();
    std::fs::write(cache.join("models--owner--name/refs/main"), "0123").unwrap();
    let inspect = |model: &str| {
        let output = kin_infer().args(["inspect", model]).env("HF_HUB_CACHE", &cache).output().unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    std::fs::copy(fixture("gguf-st-tiny.gguf"), snapshot.join("a.gguf")).unwrap();
    assert_eq!(inspect("owner/name"), (0, String::new()));
    std::fs::copy(fixture("gguf-bert-base.gguf"), snapshot.join("b.gguf")).unwrap();
    for model in ["owner/name", &snapshot.display().to_string()] {
        let (code, said) = inspect(model);
        assert!(
            code == 1 && said.contains("several GGUF files: a.gguf, b.gguf; give the path of one"),
            "{code}: {said}"
        );
        assert!(said.contains("snapshots/0123"), "{said}");
    }
    assert_eq!(inspect(&snapshot.join("a.gguf").display().to_string()).0, 0);
}
