//! The tokenizer against ids that Hugging Face's own tokenizers gave for MiniLM, and small folders for the rest.
//!
//! `fixtures/tokenizer/minilm.json` holds the expected ids.

mod common;
#[path = "tokenizer/families.rs"]
mod families;
#[path = "tokenizer/long.rs"]
mod long;
#[path = "tokenizer/malformed.rs"]
mod malformed;
#[path = "tokenizer/stream.rs"]
mod stream;

use common::minilm;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use kin_infer::InferError;
use kin_infer::tokenizer::{TextTokenizer, window};
use serde_json::{Value, json};

/// A folder under the system's temporary folder, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str, files: &[(&str, &str)]) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let (process, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(format!("kin-infer-tokenizer-{process}-{count}-{name}"));
        std::fs::create_dir_all(&folder).unwrap();
        for (file, text) in files {
            std::fs::write(folder.join(file), text).unwrap();
        }
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn expected() -> Value {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizer/minilm.json");
    serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).unwrap()
}

/// The same model with vocab.txt alone.
fn vocab_only(model: &Path, name: &str) -> Folder {
    let folder = Folder::new(name, &[]);
    for file in ["vocab.txt", "tokenizer_config.json"] {
        std::fs::copy(model.join(file), folder.0.join(file)).unwrap();
    }
    folder
}

#[test]
fn minilm_ids_equal_those_of_hugging_face() {
    let Some(model) = minilm("minilm_ids_equal_those_of_hugging_face") else { return };
    let vocab = vocab_only(&model, "ids");
    let expected = expected();
    for folder in [model.as_path(), &vocab.0] {
        let tokenizer = TextTokenizer::from_folder(folder).unwrap();
        assert_eq!(tokenizer.vocab_size(), 30522);
        assert_eq!(tokenizer.num_special_tokens(), 2);
        assert_eq!(tokenizer.pad_id(), Some(0));
        assert_eq!(tokenizer.token(101).as_deref(), Some("[CLS]"));
        assert_eq!(tokenizer.token(30522), None);
        for case in expected["texts"].as_array().unwrap() {
            let text = case["text"].as_str().unwrap();
            for (key, max_len) in [("full", 512), ("max8", 8), ("max3", 3)] {
                let encoding = tokenizer.encode(text, max_len).unwrap();
                assert_eq!(encoding.ids, ids(&case[key]), "{folder:?} {text:?} at {max_len}");
                assert_eq!(encoding.type_ids, vec![0; encoding.ids.len()]);
            }
        }
        for case in expected["prompts"].as_array().unwrap() {
            let length = tokenizer.prefix_len(case["prompt"].as_str().unwrap()).unwrap();
            assert_eq!(length as u64, case["len"].as_u64().unwrap(), "{case}");
        }
        assert_eq!(tokenizer.prefix_len("").unwrap(), 0);
    }
}

#[test]
fn minilm_pairs_equal_those_of_hugging_face() {
    let Some(model) = minilm("minilm_pairs_equal_those_of_hugging_face") else { return };
    let vocab = vocab_only(&model, "pairs");
    let expected = expected();
    for folder in [model.as_path(), &vocab.0] {
        let tokenizer = TextTokenizer::from_folder(folder).unwrap();
        for case in expected["pairs"].as_array().unwrap() {
            let (a, b) = (case["a"].as_str().unwrap(), case["b"].as_str().unwrap());
            let full = tokenizer.encode_pair(a, b, 512).unwrap();
            assert_eq!(
                (full.ids, full.type_ids),
                (ids(&case["full"]["ids"]), ids(&case["full"]["type_ids"])),
                "{case}"
            );
            for cut in case["cut"].as_array().unwrap() {
                let found = tokenizer.encode_pair(a, b, cut["max_len"].as_u64().unwrap() as usize).unwrap();
                assert_eq!((found.ids, found.type_ids), (ids(&cut["ids"]), ids(&cut["type_ids"])), "{a:?} {b:?} {cut}");
            }
        }
    }
}

#[test]
fn a_batch_keeps_order_and_equals_single_calls() {
    let folder = bert("batch", json!({}));
    let tokenizer = TextTokenizer::from_folder(&folder.0).unwrap();
    let texts: Vec<String> = (0..200).map(|n| ["hello", "world", "a"].repeat(n % 7).join(" ")).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    for (text, found) in texts.iter().zip(tokenizer.encode_batch(&texts, 9)) {
        assert_eq!(found.unwrap(), tokenizer.encode(text, 9).unwrap());
    }
    assert!(tokenizer.encode_batch(&["a"], 2).remove(0).is_err());
    assert!(tokenizer.encode_batch(&[], 9).is_empty());
}

#[test]
fn a_length_that_holds_no_content_is_refused() {
    let folder = bert("short", json!({}));
    let tokenizer = TextTokenizer::from_folder(&folder.0).unwrap();
    for max_len in [0, 1, 2] {
        assert!(matches!(tokenizer.encode("hello", max_len), Err(InferError::InvalidArgument(_))));
    }
    assert!(matches!(tokenizer.encode_pair("hello", "a", 3), Err(InferError::InvalidArgument(_))));
    assert_eq!(tokenizer.encode("hello world", 3).unwrap().ids, [2, 5, 3]);
    assert_eq!(tokenizer.encode_pair("hello", "a", 4).unwrap().ids, [2, 3, 7, 3]);
    assert_eq!(tokenizer.encode_pair("hello", "a", usize::MAX).unwrap().type_ids, [0, 0, 0, 1, 1]);
}

#[test]
fn long_lines_take_linear_time() {
    let folder = bert("long", json!({}));
    let tokenizer = TextTokenizer::from_folder(&folder.0).unwrap();
    for unit in ["x", "hello ", " ", "[CLS]", "é", "\u{4e00}", "a\u{301}", ".", "\0"] {
        let text = unit.repeat(1_000_000 / unit.len());
        let start = Instant::now();
        let encoding = tokenizer.encode(&text, 256).unwrap();
        println!("{unit:?}: {:?}", start.elapsed());
        assert!(encoding.ids.len() <= 256);
        assert!(start.elapsed() < Duration::from_secs(30), "{unit:?} takes {:?}", start.elapsed());
    }
    assert_eq!(tokenizer.encode(&"x".repeat(1_000_000), 256).unwrap().ids, [2, 1, 3]);
}

/// A folder with a small vocab.txt and the given tokenizer_config.json.
fn bert(name: &str, config: Value) -> Folder {
    let vocab = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nhello\nworld\na\nHello\n##b\né\ne\n";
    Folder::new(name, &[("vocab.txt", vocab), ("tokenizer_config.json", &config.to_string())])
}

#[test]
fn tokenizer_config_settles_the_bert_normaliser() {
    for (name, config, expected) in [
        ("lower", json!({}), vec![2, 5, 11, 3]),
        ("cased", json!({"do_lower_case": false}), vec![2, 8, 10, 3]),
        ("accents", json!({"strip_accents": false}), vec![2, 5, 10, 3]),
        ("cased-strip", json!({"do_lower_case": false, "strip_accents": true}), vec![2, 8, 11, 3]),
    ] {
        let folder = bert(name, config);
        let tokenizer = TextTokenizer::from_folder(&folder.0).unwrap();
        assert_eq!(tokenizer.encode("Hello é", 9).unwrap().ids, expected, "{name}");
    }
}

/// A tokenizer.json of whole words, with the given post-processor, normaliser and other parts.
fn words(parts: Value) -> String {
    let mut whole = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [
            {"id": 0, "content": "<pad>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
             "special": true}],
        "normalizer": null, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "unk_token": "<unk>",
                  "vocab": {"<pad>": 0, "<unk>": 1, "one": 2, "two": 3, "three": 4, "far": 9}},
    });
    whole.as_object_mut().unwrap().extend(parts.as_object().unwrap().clone());
    whole.to_string()
}

#[test]
fn truncation_and_padding_of_tokenizer_json_do_not_apply() {
    let text = words(json!({
        "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
        "padding": {"strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0,
                    "pad_type_id": 0, "pad_token": "<pad>"},
    }));
    let folder = Folder::new("cleared", &[("tokenizer.json", &text)]);
    let tokenizer = TextTokenizer::from_folder(&folder.0).unwrap();
    assert_eq!(tokenizer.encode("one two three", 16).unwrap().ids, [2, 3, 4]);
    assert_eq!(tokenizer.encode("one two three", 2).unwrap().ids, [2, 3]);
    assert_eq!((tokenizer.pad_id(), tokenizer.num_special_tokens(), tokenizer.vocab_size()), (Some(0), 0, 10));
    assert_eq!(tokenizer.encode("one <pad>", 16).unwrap().ids, [2, 0]);
    assert_eq!(tokenizer.prefix_len("one two").unwrap(), 2);
    let pair = tokenizer.encode_pair("one two", "three", 16).unwrap();
    assert_eq!((pair.ids, pair.type_ids), (vec![2, 3, 4], vec![0, 0, 1]));
    assert_eq!(tokenizer.encode("", 1).unwrap().ids, [0u32; 0]);
    assert!(tokenizer.encode("one", 0).is_err());
}

#[test]
fn the_left_side_is_cut_where_the_tokenizer_says_so() {
    let config = r#"{"truncation_side": "left"}"#;
    let folder = Folder::new("left", &[("tokenizer.json", &words(json!({}))), ("tokenizer_config.json", config)]);
    let tokenizer = TextTokenizer::from_folder(&folder.0).unwrap();
    assert_eq!(tokenizer.encode("one two three", 2).unwrap().ids, [3, 4]);
}

#[test]
fn lower_case_of_the_sentence_settings_comes_first() {
    let sentence = r#"{"max_seq_length": 128, "do_lower_case": true}"#;
    let files = [("tokenizer.json", words(json!({}))), ("sentence_bert_config.json", sentence.to_owned())];
    let folder = Folder::new("sentence", &files.each_ref().map(|(name, text)| (*name, text.as_str())));
    let tokenizer = TextTokenizer::from_folder(&folder.0).unwrap();
    assert_eq!(tokenizer.encode("ONE", 4).unwrap().ids, [2]);
}

#[test]
fn folders_without_a_usable_tokenizer_say_why() {
    let message = |files: &[(&str, &str)]| {
        let folder = Folder::new("bad", files);
        TextTokenizer::from_folder(&folder.0).unwrap_err().to_string()
    };
    let none = message(&[]);
    assert!(none.contains("tokenizer.json") && none.contains("vocab.txt"), "{none}");
    assert!(message(&[("tokenizer.json", "{")]).contains("tokenizer.json: tokenizer: "));
    assert!(message(&[("tokenizer.json", "[1, 2]")]).contains("tokenizer.json: tokenizer: "));
    let template = json!({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}],
                          "pair": [], "special_tokens": {}});
    let unknown = words(json!({"post_processor": template}));
    assert!(message(&[("tokenizer.json", &unknown)]).contains("tokenizer.json: tokenizer: "));
    assert!(message(&[("vocab.txt", "a\nb\n")]).contains("[UNK]"));
    let other = r#"{"tokenizer_class": "RoFormerTokenizer"}"#;
    assert!(message(&[("vocab.txt", "a\n"), ("tokenizer_config.json", other)]).contains("RoFormerTokenizer"));
    let wrong = [("vocab.txt", "[UNK]\n[CLS]\n[SEP]\n"), ("tokenizer_config.json", r#"{"do_lower_case": "yes"}"#)];
    assert!(message(&wrong).contains("tokenizer_config.json: `do_lower_case` is \"yes\""));
}

#[test]
fn added_tokens_follow_the_vocabulary_or_are_refused() {
    let vocab = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nhello\n";
    let folder = Folder::new("added", &[("vocab.txt", vocab), ("added_tokens.json", r#"{"<code>": 6}"#)]);
    let tokenizer = TextTokenizer::from_folder(&folder.0).unwrap();
    assert_eq!(tokenizer.encode("hello <code> hello", 9).unwrap().ids, [2, 5, 6, 5, 3]);
    assert_eq!(tokenizer.vocab_size(), 7);
    let gap = Folder::new("gap", &[("vocab.txt", vocab), ("added_tokens.json", r#"{"<code>": 8}"#)]);
    assert!(TextTokenizer::from_folder(&gap.0).unwrap_err().to_string().contains("<code>"));
}

#[test]
fn the_window_is_what_the_folder_says_and_the_positions_allow() {
    for (sentence, tokenizer, config, expected) in [
        ("{}", "{}", None, None),
        (r#"{"max_seq_length": 256}"#, r#"{"model_max_length": 512}"#, Some(512), Some((256, "sentence_bert"))),
        (r#"{"max_seq_length": 400}"#, r#"{"model_max_length": 128}"#, Some(512), Some((400, "sentence_bert"))),
        (r#"{"max_seq_length": 800}"#, r#"{"model_max_length": 128}"#, Some(512), Some((512, "config.json"))),
        (r#"{"max_seq_length": null}"#, r#"{"model_max_length": 1e30}"#, Some(512), Some((512, "config.json"))),
        ("{}", r#"{"model_max_length": 1000000000000000019884624838656}"#, None, None),
        ("{}", r#"{"model_max_length": 384.0}"#, Some(514), Some((384, "tokenizer_config"))),
    ] {
        let files = [("sentence_bert_config.json", sentence), ("tokenizer_config.json", tokenizer)];
        let folder = Folder::new("window", &files);
        let found = window(&folder.0, config).unwrap();
        assert_eq!(found.as_ref().map(|found| found.limit), expected.map(|expected| expected.0), "{files:?}");
        if let (Some(found), Some(expected)) = (found, expected) {
            assert!(found.source.contains(expected.1), "{found:?}");
        }
    }
    for bad in ["0", "-1", "\"512\"", "12.5"] {
        let folder =
            Folder::new("bad-window", &[("tokenizer_config.json", &format!(r#"{{"model_max_length": {bad}}}"#))]);
        let message = window(&folder.0, None).unwrap_err().to_string();
        assert!(message.contains("tokenizer_config.json: `model_max_length` is "), "{message}");
    }
}
