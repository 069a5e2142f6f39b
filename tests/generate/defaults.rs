//! generation_config.json and config.json.

use std::path::PathBuf;

use kin_infer::generate::{GenerationDefaults, SamplingParams};
use serde_json::{Value, json};

use crate::load;

/// The defaults of a folder with these two files.
fn defaults(name: &str, own: Option<Value>, config: Value) -> kin_infer::Result<GenerationDefaults> {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("generation-defaults-{name}"));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    if let Some(own) = own {
        std::fs::write(folder.join("generation_config.json"), own.to_string()).unwrap();
    }
    GenerationDefaults::from_folder(&folder)
}

fn shown(params: &SamplingParams) -> String {
    format!("{params:?}")
}

#[test]
fn stop_ids_come_from_either_file() {
    for (i, (own, config, expected)) in [
        (None, json!({"eos_token_id": 2}), vec![2]),
        (None, json!({"eos_token_id": [2, 7]}), vec![2, 7]),
        (None, json!({}), vec![]),
        (None, json!({"eos_token_id": null}), vec![]),
        (Some(json!({"eos_token_id": [5, 6]})), json!({"eos_token_id": 2}), vec![5, 6]),
        (Some(json!({"eos_token_id": 5})), json!({"eos_token_id": 2}), vec![5]),
        (Some(json!({"do_sample": false})), json!({"eos_token_id": 2}), vec![2]),
    ]
    .into_iter()
    .enumerate()
    {
        let found = defaults(&format!("stops-{i}"), own, config).unwrap().params();
        assert_eq!(shown(&found), shown(&SamplingParams::new().stop_ids(expected)), "case {i}");
    }
}

#[test]
fn sampling_is_what_the_file_says() {
    let own = json!({"do_sample": true, "temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": 0.05, "bos_token_id": 1,
        "repetition_penalty": 1.05, "max_new_tokens": 77, "stop_strings": ["a", "b"], "num_beams": 1, "pad_token_id": 0,
        "typical_p": 1.0, "suppress_tokens": [], "min_length": 0, "cache_implementation": "hybrid"});
    let found = defaults("sampled", Some(own.clone()), json!({})).unwrap();
    let expected = SamplingParams::new().temperature(0.6).top_p(0.9).top_k(20).min_p(0.05).repetition_penalty(1.05);
    assert_eq!(shown(&found.params()), shown(&expected.clone().stop_texts(["a", "b"])));
    assert_eq!((found.bos_id, found.max_new_tokens), (Some(1), Some(77)));
    let mut greedy = own;
    greedy["do_sample"] = json!(false);
    let found = defaults("greedy", Some(greedy), json!({})).unwrap().params();
    assert_eq!(shown(&found), shown(&expected.temperature(0.0).stop_texts(["a", "b"])));
    let plain = defaults("plain", Some(json!({"do_sample": true})), json!({})).unwrap().params();
    assert_eq!(shown(&plain), shown(&SamplingParams::new().temperature(1.0)));
}

#[test]
fn what_is_not_supported_is_refused_by_name() {
    for (i, (key, value)) in [
        ("num_beams", json!(4)),
        ("penalty_alpha", json!(0.6)),
        ("typical_p", json!(0.5)),
        ("no_repeat_ngram_size", json!(3)),
        ("min_new_tokens", json!(2)),
        ("bad_words_ids", json!([[1]])),
        ("suppress_tokens", json!([1, 2])),
        ("forced_bos_token_id", json!(3)),
        ("eos_token_id", json!("two")),
        ("eos_token_id", json!([1, -2])),
        ("temperature", json!("warm")),
        ("top_p", json!(1.5)),
        ("top_k", json!(-1)),
        ("repetition_penalty", json!(0)),
        ("do_sample", json!("yes")),
        ("stop_strings", json!([1])),
    ]
    .into_iter()
    .enumerate()
    {
        let own = json!({"do_sample": key != "do_sample", key: value});
        let error = defaults(&format!("refused-{i}"), Some(own), json!({})).unwrap_err().to_string();
        assert!(error.contains(key) && error.contains("generation_config.json"), "{key}: {error}");
    }
    assert!(defaults("malformed", Some(json!([])), json!({})).is_err());
}

/// The parameters of a folder do what they say.
#[test]
fn defaults_are_parameters() {
    let model = load("llama-gqa");
    let whole = model.generate(&[3], 10, &mut SamplingParams::new()).unwrap().tokens;
    let stop = whole[4];
    let own = json!({"eos_token_id": [stop]});
    let mut params = defaults("used", Some(own), json!({})).unwrap().params();
    let found = model.generate(&[3], 10, &mut params).unwrap().tokens;
    let end = whole.iter().position(|t| *t == stop).unwrap();
    assert_eq!(found, whole[..=end]);
}
