//! Every family against its reference: from its raw files, and from tokenizer.json where there is one.
//!
//! What the folders hold is said in tools/fixtures/tokenizers.py.

use std::path::{Path, PathBuf};

use kin_infer::tokenizer::TextTokenizer;
use serde_json::{Value, json};

use super::common::{fixture, fixtures};
use super::{Folder, ids};

pub(super) fn read(file: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
}

/// The texts that all references were made for.
pub(super) fn texts() -> Vec<String> {
    serde_json::from_value(read(&fixture("tokenizer").join("texts.json"))["texts"].clone()).unwrap()
}

/// The fixtures' folders.
pub(super) fn folders() -> Vec<PathBuf> {
    let found: Vec<_> = fixtures("tokenizer-").iter().map(|name| fixture(name)).collect();
    assert!(found.len() >= 17, "{found:?}");
    found
}

/// A copy of a fixture's files, without expected.json and the named ones, with another configuration.
pub(super) fn copy(fixture: &Path, without: &[&str], config: &Value) -> Folder {
    let name = fixture.file_name().unwrap().to_str().unwrap();
    let folder = Folder::new(&format!("{name}-{}", without.len()), &[]);
    for entry in std::fs::read_dir(fixture).unwrap().flatten() {
        let file = entry.file_name().into_string().unwrap();
        if file != "expected.json" && !without.contains(&file.as_str()) {
            std::fs::copy(entry.path(), folder.0.join(&file)).unwrap();
        }
    }
    if config.as_object().is_some_and(|config| !config.is_empty()) {
        std::fs::write(folder.0.join("tokenizer_config.json"), config.to_string()).unwrap();
    }
    folder
}

/// Every case of every folder read from its raw files, and the first case of a folder read from tokenizer.json.
fn each_case(check: impl Fn(&TextTokenizer, &Value, &str)) {
    for path in folders() {
        let cases = read(&path.join("expected.json"));
        for (index, case) in cases.as_array().unwrap().iter().enumerate() {
            let raw = copy(&path, &["tokenizer.json"], &case["config"]);
            let what = format!("{} from raw files, {}", path.display(), case["config"]);
            check(&TextTokenizer::from_folder(&raw.0).unwrap(), case, &what);
            if index == 0 && path.join("tokenizer.json").is_file() {
                let saved = copy(&path, &[], &case["config"]);
                let what = format!("{} from tokenizer.json", path.display());
                check(&TextTokenizer::from_folder(&saved.0).unwrap(), case, &what);
            }
        }
    }
}

#[test]
fn ids_of_every_family_equal_the_reference() {
    let texts = texts();
    each_case(|tokenizer, case, what| {
        let expected = case["ids"].as_array().unwrap();
        assert_eq!(expected.len(), texts.len());
        for (text, expected) in texts.iter().zip(expected) {
            let found = tokenizer.encode(text, usize::MAX).unwrap();
            if !expected.is_null() {
                assert_eq!(found.ids, ids(expected), "{what}: {text:?}");
            }
            assert_eq!(found.type_ids, vec![0; found.ids.len()], "{what}: {text:?}");
            assert!(found.ids.iter().all(|id| (*id as usize) < tokenizer.vocab_size()));
        }
    });
}

#[test]
fn cuts_and_pairs_of_every_family_equal_the_reference() {
    let texts = texts();
    each_case(|tokenizer, case, what| {
        for cut in case["cuts"].as_array().unwrap() {
            let text = &texts[cut[0].as_u64().unwrap() as usize];
            let found = tokenizer.encode(text, cut[1].as_u64().unwrap() as usize).unwrap();
            assert_eq!(found.ids, ids(&cut[2]), "{what}: {text:?} cut to {}", cut[1]);
        }
        for pair in case["pairs"].as_array().unwrap() {
            let (a, b) = (pair[0].as_str().unwrap(), pair[1].as_str().unwrap());
            let max_len = pair[2].as_u64().map_or(usize::MAX, |length| length as usize);
            let found = tokenizer.encode_pair(a, b, max_len).unwrap();
            assert_eq!((found.ids, found.type_ids), (ids(&pair[3]), ids(&pair[4])), "{what}: {a:?} {b:?} {max_len}");
        }
    });
}

#[test]
fn texts_of_every_family_equal_the_reference() {
    each_case(|tokenizer, case, what| {
        for (key, skip_special) in [("decoded", false), ("decoded_plain", true)] {
            let Some(expected) = case[key].as_array() else { continue };
            for (ids, expected) in case["ids"].as_array().unwrap().iter().zip(expected) {
                let Some(expected) = expected.as_str() else { continue };
                let found = tokenizer.decode(&super::ids(ids), skip_special).unwrap();
                assert_eq!(found, expected, "{what}: {ids}, special tokens skipped: {skip_special}");
            }
        }
    });
}

#[test]
fn flags_of_the_configuration_replace_the_template_of_tokenizer_json() {
    let path = fixture("tokenizer-llama");
    for (flags, expected) in [
        (json!({"add_bos_token": true, "add_eos_token": true}), (true, true)),
        (json!({"add_bos_token": false}), (false, false)),
        (json!({"add_eos_token": true}), (true, true)),
        (json!({}), (true, false)),
    ] {
        let mut config = json!({"tokenizer_class": "LlamaTokenizer", "legacy": true});
        config.as_object_mut().unwrap().extend(flags.as_object().unwrap().clone());
        for without in [&["tokenizer.json"][..], &[]] {
            let folder = copy(&path, without, &config);
            let found = TextTokenizer::from_folder(&folder.0).unwrap().encode("x", 9).unwrap().ids;
            assert_eq!((found.first() == Some(&1), found.last() == Some(&2)), expected, "{flags} {without:?}");
        }
    }
}
