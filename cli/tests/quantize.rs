//! `quantize`.

mod common;

use common::*;

#[test]
fn a_quantised_copy_is_a_model_for_every_command() {
    let folder = scratch("quantize");
    let output = folder.join("copy");
    let (model, output_text) = (fixture("st-tiny").display().to_string(), output.display().to_string());
    let arguments = ["quantize", "--model", &model, "--type", "q8_0", "--output", &output_text];
    let ran = run(&arguments).expect(0);
    assert_eq!(ran.stdout, "");
    assert!(ran.stderr.contains("tensors in blocks of Q8_0"), "{}", ran.stderr);
    run(&["inspect", &output_text]).expect(0);
    let vectors = run(&["embed", "--model", &output_text, "a text"]).expect(0).json();
    let original = run(&["embed", "--model", &model, "a text"]).expect(0).json();
    let [a, b] = [&vectors, &original].map(|v| floats(&v[0]["embedding"]));
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    assert!(dot(&a, &b) > 0.99 * (dot(&a, &a) * dot(&b, &b)).sqrt());

    let ran = run(&arguments).expect(1);
    assert!(ran.stderr.contains("exists and is not empty"), "{}", ran.stderr);
    run(&["quantize", "--model", &model, "--type", "q9", "--output", "x"]).expect(2);
    let quiet = folder.join("quiet").display().to_string();
    let ran = run(&["quantize", "--model", &model, "--type", "q4_0", "--output", &quiet, "--embeddings", "--quiet"]);
    assert_eq!(ran.expect(0).stderr, "");
}
