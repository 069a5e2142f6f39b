//! GGUF files as model arguments.

mod common;

use common::*;

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
