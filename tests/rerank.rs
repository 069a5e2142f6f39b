//! Pairs of texts: what a cross-encoder of every family is given, and what stands before its queries.

mod common;

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{fixture, fixtures};
use kin_infer::arch::HeadChoice;
use kin_infer::{BertConfig, BertModel, LoadOptions, Reranker, Sequence};
use serde_json::{Value, json};

/// A copy of a classifier with a tokenizer of five words, removed when the test ends.
struct Folder(PathBuf);

impl Folder {
    /// The second text's tokens are of type `second`.
    fn new(name: &str, second: u32, files: &[(&str, Value)]) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let unique = format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(format!("kin-infer-rerank-{unique}"));
        fs::create_dir_all(&folder).unwrap();
        for file in ["config.json", "model.safetensors"] {
            fs::copy(fixture(name).join(file), folder.join(file)).unwrap();
        }
        let special = |id: u32, text: &str| {
            json!({"id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true})
        };
        let token = |text: &str, kind: u32| json!({"SpecialToken": {"id": text, "type_id": kind}});
        let text = |part: &str, kind: u32| json!({"Sequence": {"id": part, "type_id": kind}});
        let (first, last) = (token("[CLS]", 0), token("[SEP]", 0));
        let tokenizer = json!({
            "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "decoder": null,
            "added_tokens": [special(2, "[CLS]"), special(3, "[SEP]")],
            "pre_tokenizer": {"type": "Whitespace"},
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [first, text("A", 0), last],
                "pair": [first, text("A", 0), last, text("B", second), token("[SEP]", second)],
                "special_tokens": {
                    "[CLS]": {"id": "[CLS]", "ids": [2], "tokens": ["[CLS]"]},
                    "[SEP]": {"id": "[SEP]", "ids": [3], "tokens": ["[SEP]"]},
                },
            },
            "model": {"type": "WordLevel", "unk_token": "?", "vocab": {
                "?": 4, "where": 5, "is": 6, "it": 7, "here": 8, "[CLS]": 2, "[SEP]": 3,
            }},
        });
        for (name, value) in files.iter().chain(&[("tokenizer.json", tokenizer)]) {
            fs::write(folder.join(name), value.to_string()).unwrap();
        }
        Self(folder)
    }

    fn scores(&self) -> Vec<f32> {
        Reranker::load(&self.0).unwrap().score("where is", &["it here", "here"]).remove(0).unwrap()
    }

    /// The scores of ids as they are.
    fn scores_of(&self, ids: &[u32], type_ids: &[u32]) -> Vec<f32> {
        let options = LoadOptions { head: HeadChoice::Configured, ..LoadOptions::default() };
        let compute = kin_infer::gpu::create_compute().unwrap();
        let config = BertConfig::from_folder(&self.0).unwrap();
        let model = BertModel::load_with_options(&self.0, config, compute, options).unwrap();
        let sequence = Sequence { ids: ids.to_vec(), type_ids: type_ids.to_vec(), positions: Vec::new() };
        model.classify(&[sequence]).remove(0).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const PAIR: [u32; 7] = [2, 5, 6, 3, 7, 8, 3];
const TYPES: [u32; 7] = [0, 0, 0, 0, 1, 1, 1];

/// Tokenizers of families without token types may number them all the same: such a model is told none.
#[test]
fn every_family_scores_pairs_whatever_types_its_tokenizer_gives() {
    let names: Vec<String> = fixtures("").into_iter().filter(|name| name.contains("classifier")).collect();
    let names: Vec<&String> = names.iter().filter(|name| !name.starts_with("gguf-")).collect();
    assert!(names.len() >= 20, "fixtures are missing: {names:?}");
    let mut untyped = 0;
    for name in names {
        let types = BertModel::load(&fixture(name), BertConfig::from_folder(&fixture(name)).unwrap()).unwrap();
        let types = types.spec().embedding.token_types;
        untyped += usize::from(types == 0);
        // The only type of those with one is 0.
        let folder = Folder::new(name, u32::from(types != 1), &[]);
        let expected = folder.scores_of(&PAIR, if types > 1 { &TYPES } else { &[] });
        assert_eq!(folder.scores(), expected, "{name}, which has {types} types");
    }
    assert!(untyped >= 5, "{untyped} families without types");
}

#[test]
fn types_that_are_no_input_of_the_model_are_0() {
    let names = |names: &[&str]| json!({"model_input_names": names});
    let with = |names: Value| Folder::new("bert-classifier-1", 1, &[("tokenizer_config.json", names)]);
    let folder = with(names(&["input_ids", "attention_mask"]));
    let (plain, typed) = (folder.scores_of(&PAIR, &[]), folder.scores_of(&PAIR, &TYPES));
    assert_ne!(plain, typed);
    assert_eq!(folder.scores(), plain);
    assert_eq!(with(names(&["input_ids", "token_type_ids", "attention_mask"])).scores(), typed);
}

#[test]
fn the_default_prompt_stands_before_the_query() {
    let prompts = json!({"prompts": {"query": "here ", "other": "it "}, "default_prompt_name": "query"});
    let folder = Folder::new("bert-classifier-3", 1, &[("config_sentence_transformers.json", prompts)]);
    let expected = folder.scores_of(&[2, 8, 5, 6, 3, 7, 8, 3], &[0, 0, 0, 0, 0, 1, 1, 1]);
    assert_eq!(folder.scores(), expected);
}
