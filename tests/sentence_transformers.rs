//! Whole folders, text to vector, against sentence-transformers in float64.

mod common;

use common::{Reference, assert_close, fixture, minilm};
use kin_infer::{EmbedOptions, Embedder, Prompt, dot_product};

fn texts(name: &str) -> Vec<String> {
    serde_json::from_str(&std::fs::read_to_string(fixture(name).join("texts.json")).unwrap()).unwrap()
}

/// Embeds the fixture's texts in one call and each alone, and compares both with the reference.
fn check(embedder: &Embedder, name: &str, kind: &str, options: &EmbedOptions, bound: f64) {
    let (texts, reference) = (texts(name), Reference::open(name));
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let vectors = embedder.embed_with(&texts, options).unwrap();
    assert_eq!(vectors.len(), texts.len());
    for (i, vector) in vectors.iter().enumerate() {
        let expected = reference.values(&format!("{kind}.{i}")).unwrap();
        assert_close(&format!("{name}: {kind} {i}"), vector, &expected, bound);
        let alone = embedder.embed_with(&texts[i..=i], options).unwrap();
        assert_eq!(&alone[0], vector, "{name}: {kind} {i} alone");
    }
}

#[test]
fn every_module_of_a_folder_takes_part() {
    let embedder = Embedder::load(&fixture("st-tiny")).unwrap();
    assert_eq!((embedder.dimension(), embedder.window().limit), (24, 24));
    assert!(embedder.assumptions().is_empty());
    check(&embedder, "st-tiny", "text", &EmbedOptions::default(), 2e-5);
    let query = EmbedOptions { prompt: Prompt::Named("query".into()), dimensions: None };
    check(&embedder, "st-tiny", "query", &query, 2e-5);
    let as_text = EmbedOptions { prompt: Prompt::Text("query: ".into()), dimensions: None };
    check(&embedder, "st-tiny", "query", &as_text, 2e-5);
    let all = texts("st-tiny");
    assert_eq!(embedder.embed_query(&all[3]).unwrap(), embedder.embed_with(&[&all[3]], &query).unwrap()[0]);
    assert_eq!(embedder.embed_documents(&[&all[3]]).unwrap(), embedder.embed(&[&all[3]]).unwrap());
}

#[test]
fn shorter_vectors_are_the_leading_values_normalised_again() {
    let embedder = Embedder::load(&fixture("st-tiny")).unwrap();
    let text = "some words to embed";
    let whole = embedder.embed(&[text]).unwrap().remove(0);
    let options = EmbedOptions { dimensions: Some(7), ..Default::default() };
    let cut = embedder.embed_with(&[text], &options).unwrap().remove(0);
    let norm = whole[..7].iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
    let expected: Vec<f64> = whole[..7].iter().map(|v| f64::from(*v) / norm).collect();
    assert_close("7 dimensions", &cut, &expected, 1e-6);
}

#[test]
fn a_folder_without_modules_is_mean_pooled_and_says_so() {
    let folder = std::env::temp_dir().join(format!("kin-infer-{}-plain", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for file in ["config.json", "model.safetensors", "tokenizer.json"] {
        std::fs::copy(fixture("st-tiny").join(file), folder.join(file)).unwrap();
    }
    let embedder = Embedder::load(&folder).unwrap();
    let said = embedder.assumptions();
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(said.len() == 1 && said[0].contains("no modules.json"), "{said:?}");
    let text = "let x = 1;";
    let vector = embedder.embed(&[text]).unwrap().remove(0);
    let tokens = embedder.embed_tokens(&[text]).remove(0).unwrap();
    let mut mean = vec![0f64; 32];
    tokens.chunks(32).for_each(|t| mean.iter_mut().zip(t).for_each(|(m, x)| *m += f64::from(*x)));
    let norm = mean.iter().map(|m| m * m).sum::<f64>().sqrt();
    mean.iter_mut().for_each(|m| *m /= norm);
    assert_close("mean of the tokens", &vector, &mean, 1e-6);
}

#[test]
fn minilm_agrees_with_sentence_transformers_on_twenty_texts() {
    let Some(folder) = minilm("minilm_agrees_with_sentence_transformers_on_twenty_texts") else { return };
    let embedder = Embedder::load(&folder).unwrap();
    assert_eq!((embedder.dimension(), embedder.window().limit), (384, 256));
    assert_eq!(texts("minilm").len(), 20);
    check(&embedder, "minilm", "text", &EmbedOptions::default(), 1e-5);
}

#[test]
fn minilm_finds_the_text_that_answers() {
    let Some(folder) = minilm("minilm_finds_the_text_that_answers") else { return };
    let embedder = Embedder::load(&folder).unwrap();
    let texts = ["fn sort(v: &mut [i32]) { v.sort() }", "the capital of France is Paris", "how to bake bread"];
    let vectors = embedder.embed(&texts).unwrap();
    let query = embedder.embed_query("which city is the French capital?").unwrap();
    let scores: Vec<f32> = vectors.iter().map(|v| dot_product(v, &query)).collect();
    assert!(scores[1] > scores[0] && scores[1] > scores[2], "{scores:?}");
}

/// MiniLM's bits, as the README publishes them.
#[test]
fn minilm_has_the_published_fingerprint() {
    let Some(folder) = minilm("minilm_has_the_published_fingerprint") else { return };
    let readme = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md")).unwrap();
    let config = kin_infer::BertConfig::from_folder(&folder).unwrap();
    for kernels in kin_infer::cpu::available() {
        let compute = std::sync::Arc::new(kin_infer::cpu::CpuCompute::with_kernels(kernels));
        let model = kin_infer::BertModel::load_with_compute(&folder, config.clone(), compute).unwrap();
        let hash = kin_infer::fingerprint(&model).unwrap();
        let hex: String = hash.iter().map(|b| format!("{b:02x}")).collect();
        assert!(readme.contains(&hex), "{}: {hex} is not the fingerprint in README.md", kernels.name());
    }
}
