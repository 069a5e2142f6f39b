//! Files that are not what they should be: an error that names the file, never a panic, never memory for what is not
//! there.

use std::path::Path;

use kin_infer::InferError;
use kin_infer::tokenizer::TextTokenizer;
use serde_json::{Value, json};

use super::common::fixture;
use super::families::{copy, read, texts};
use super::stream::Random;
use super::{Folder, words};

/// A field of a protocol buffer.
fn number(field: u8, value: u64) -> Vec<u8> {
    let mut bytes = varint(u64::from(field) << 3);
    bytes.extend(varint(value));
    bytes
}

fn bytes(field: u8, value: &[u8]) -> Vec<u8> {
    [varint(u64::from(field) << 3 | 2), varint(value.len() as u64), value.to_vec()].concat()
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

fn piece(text: &str, score: f32, kind: u64) -> Vec<u8> {
    let score = [&[2 << 3 | 5][..], &score.to_le_bytes()].concat();
    bytes(1, &[bytes(1, text.as_bytes()), score, number(3, kind)].concat())
}

/// The first pieces of every T5 file, with what is given after them; padding 0, end 1, unknown 2.
fn t5(parts: &[Vec<u8>]) -> Vec<u8> {
    let first = [piece("<pad>", 0.0, 3), piece("</s>", 0.0, 3), piece("<unk>", 0.0, 2), piece("\u{2581}", -2.0, 1)];
    let trainer = bytes(2, &[number(40, 2), number(41, u64::MAX), number(42, 1), number(43, 0)].concat());
    [first.concat(), trainer, parts.concat()].concat()
}

fn load(class: &str, name: &str, model: &[u8]) -> Result<TextTokenizer, InferError> {
    let config = json!({"tokenizer_class": class, "extra_ids": 2}).to_string();
    let folder = Folder::new("malformed", &[("tokenizer_config.json", &config)]);
    std::fs::write(folder.0.join(name), model).unwrap();
    TextTokenizer::from_folder(&folder.0)
}

/// The message of an error about the tokenizer's file of that name.
fn refusal(found: Result<TextTokenizer, InferError>, name: &str) -> String {
    let error = found.unwrap_err();
    let message = error.to_string();
    assert!(matches!(&error, InferError::TokenizerError { file, .. } if file.ends_with(name)), "{message}");
    message
}

#[test]
fn sentencepiece_files_are_refused_with_the_reason() {
    let good = load("T5Tokenizer", "spiece.model", &t5(&[piece("\u{2581}a", -1.0, 1)])).unwrap();
    assert_eq!(good.encode("a b", 9).unwrap().ids, [4, 3, 2, 1]);
    assert_eq!((good.vocab_size(), good.token(6).as_deref()), (7, Some("<extra_id_0>")));
    let charsmap = |map: &[u8]| bytes(3, &bytes(2, map));
    let (long, longest) = ("x".repeat(513), "x".repeat(512));
    for (part, reason) in [
        (vec![1 << 3 | 2, 0x7f, b'x'], "truncated"),
        (vec![1 << 3 | 2, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f], "truncated"),
        (vec![0xff; 12], "more than ten bytes"),
        (vec![9 << 3 | 3], "wire type 3"),
        (vec![9 << 3 | 1, 0, 0], "truncated"),
        (number(1, 5), "another type"),
        (bytes(1, &number(2, 7)), "another type"),
        (bytes(1, &bytes(3, b"x")), "another type"),
        (bytes(1, &bytes(1, &[0xff, 0xfe])), "piece 4: a text is not UTF-8"),
        (piece("", 0.0, 1), "piece 4 is empty"),
        (piece(&long, 0.0, 1), "piece 4 is longer than 512"),
        (piece("x", f32::NAN, 1), "piece 4 has the score NaN"),
        (piece("x", f32::NEG_INFINITY, 1), "piece 4 has the score -inf"),
        (piece("x", 0.0, 9), "unknown type"),
        (piece("<pad>", 0.0, 1), "`<pad>` stands twice"),
        (piece("<extra_id_1>", 0.0, 1), "`<extra_id_1>` stands twice"),
        (piece("<other>", 0.0, 2), "marked as unknown"),
        (bytes(2, &number(40, 3)), "`unk_id` is 3"),
        (bytes(2, &number(40, 1 << 40)), "`unk_id` is 1099511627776"),
        (bytes(2, &number(41, 4)), "`bos_id` is 4, but there are 4 pieces"),
        (bytes(2, &number(42, 1 << 62)), "`eos_id`"),
        (bytes(2, &number(43, 9)), "`pad_id`"),
        (bytes(2, &number(3, 3)), "`model_type` is 3"),
        (bytes(2, &number(24, 1)), "treat_whitespace_as_suffix"),
        (bytes(3, &number(5, 0)), "escape_whitespaces"),
        (charsmap(&[1]), "character map"),
        (charsmap(&[0xff, 0xff, 0xff, 0xff]), "character map"),
        (charsmap(&[4, 0, 0, 0, 0, 0, 0, 0]), "character map"),
        (charsmap(&[3, 0, 0, 0, 0, 0, 0, 0]), "character map"),
    ] {
        let message = refusal(load("T5Tokenizer", "spiece.model", &t5(&[part])), "spiece.model");
        assert!(message.contains(reason), "{message}, expected {reason}");
    }
    assert!(load("T5Tokenizer", "spiece.model", &t5(&[piece(&longest, 0.0, 1)])).is_ok());
    assert!(refusal(load("T5Tokenizer", "spiece.model", b""), "spiece.model").contains("no pieces"));
    let late = [piece("<pad>", 0.0, 3), piece("<s>", 0.0, 3), piece("</s>", 0.0, 3), piece("<unk>", 0.0, 2)].concat();
    let late = [late, bytes(2, &number(40, 3))].concat();
    let layout = refusal(load("XLMRobertaTokenizer", "sentencepiece.bpe.model", &late), "sentencepiece.bpe.model");
    assert!(layout.contains("`unk_id` is 3, which this family has among the first 3"), "{layout}");
    let layout = refusal(load("GemmaTokenizer", "tokenizer.model", &t5(&[])), "tokenizer.model");
    assert!(layout.contains("`unk_id` is 2, which this family has after the first 3"), "{layout}");
    let few = [piece("<unk>", 0.0, 2), piece("x", 0.0, 1), piece("y", 0.0, 1)].concat();
    let layout = refusal(load("XLMRobertaTokenizer", "sentencepiece.bpe.model", &few), "sentencepiece.bpe.model");
    assert!(layout.contains("piece 1 is `x`"), "{layout}");
    let few = [piece("<unk>", 0.0, 2), bytes(2, &[number(41, 0), number(42, 0)].concat())].concat();
    let few = refusal(load("GemmaTokenizer", "tokenizer.model", &few), "tokenizer.model");
    assert!(few.contains("too few pieces"), "{few}");
}

#[test]
fn damaged_sentencepiece_files_never_panic() {
    let texts = texts();
    for (name, file) in
        [("xlm-roberta", "sentencepiece.bpe.model"), ("llama", "tokenizer.model"), ("albert", "spiece.model")]
    {
        let path = fixture(&format!("tokenizer-{name}"));
        let whole = std::fs::read(path.join(file)).unwrap();
        let folder = copy(&path, &["tokenizer.json"], &read(&path.join("expected.json"))[0]["config"]);
        let mut random = Random(3);
        let (mut refused, mut loaded) = (0, 0);
        for round in 0..600 {
            let mut damaged = whole.clone();
            match round % 3 {
                0 => damaged.truncate(random.below(whole.len())),
                1 => (0..3).for_each(|_| damaged[random.below(whole.len())] = random.below(256) as u8),
                _ => drop(damaged.drain(..random.below(40)).count()),
            }
            std::fs::write(folder.0.join(file), &damaged).unwrap();
            match TextTokenizer::from_folder(&folder.0) {
                Err(InferError::TokenizerError { file: named, .. }) if named.starts_with(&folder.0) => refused += 1,
                Err(other) => panic!("{other}"),
                Ok(tokenizer) => {
                    loaded += 1;
                    texts.iter().for_each(|text| drop(tokenizer.encode(text, usize::MAX)));
                }
            }
        }
        assert!(refused > 250 && loaded > 0, "{name}: {refused} refused, {loaded} loaded");
    }
}

#[test]
fn damaged_character_maps_never_panic() {
    let path = fixture("tokenizer-xlm-roberta");
    let saved: Value = read(&path.join("tokenizer.json"));
    let texts = texts();
    let mut random = Random(5);
    let (mut refused, mut loaded) = (0, 0);
    for _ in 0..400 {
        let mut damaged = saved.clone();
        let map = &mut damaged["normalizer"]["normalizers"][0]["precompiled_charsmap"];
        let mut text = map.as_str().unwrap().as_bytes().to_vec();
        let (place, digits) = (random.below(text.len() - 2), b"ABCDEFGHabcdefgh01234567+/");
        text[place] = digits[random.below(digits.len())];
        *map = Value::String(String::from_utf8(text).unwrap());
        let folder = Folder::new("map", &[("tokenizer.json", &damaged.to_string())]);
        match TextTokenizer::from_folder(&folder.0) {
            Err(error) => refused += usize::from(error.to_string().contains("tokenizer.json: tokenizer: ")),
            Ok(tokenizer) => {
                loaded += 1;
                texts.iter().for_each(|text| drop(tokenizer.encode(text, usize::MAX)));
            }
        }
    }
    assert!(refused > 20 && loaded > 20 && refused + loaded == 400, "{refused} refused, {loaded} loaded");
    let empty =
        json!({"type": "Sequence", "normalizers": [{"type": "Precompiled", "precompiled_charsmap": "/////w=="}]});
    let folder = Folder::new("map", &[("tokenizer.json", &words(json!({"normalizer": empty})))]);
    assert!(refusal(TextTokenizer::from_folder(&folder.0), "tokenizer.json").contains("character map"));
}

/// A folder of GPT-2's kind.
fn byte_level(vocab: &str, merges: &str) -> Result<TextTokenizer, InferError> {
    let config = r#"{"tokenizer_class": "GPT2Tokenizer", "unk_token": null, "bos_token": null, "eos_token": null}"#;
    let files = [("vocab.json", vocab), ("merges.txt", merges), ("tokenizer_config.json", config)];
    TextTokenizer::from_folder(&Folder::new("bytes", &files).0)
}

#[test]
fn vocabularies_and_merges_are_refused_with_the_reason() {
    let vocab = r#"{"a": 0, "b": 1, "ab": 2, "Ġ": 3}"#;
    for merges in ["#version: 0.2\na b\n", "a b", "\na b\r\n\n"] {
        let tokenizer = byte_level(vocab, merges).unwrap();
        assert_eq!(tokenizer.encode("ab ba", 9).unwrap().ids, [2, 3, 1, 0]);
    }
    for (vocab, reason) in [
        ("[]", "expected a JSON object"),
        ("{", "not valid JSON"),
        (r#"{"a": -1}"#, "`a` has the id -1"),
        (r#"{"a": 1.5}"#, "`a` has the id 1.5"),
        (r#"{"a": 4294967296}"#, "`a` has the id 4294967296"),
        (r#"{"a": "0"}"#, "`a` has the id \"0\""),
        (r#"{"a": 0, "b": 0}"#, "two tokens have the id 0"),
    ] {
        let message = refusal(byte_level(vocab, ""), "vocab.json");
        assert!(message.contains(reason), "{message}");
    }
    for (merges, reason) in
        [("a b\nab c\n", "`c`"), ("b a\n", "`ba`"), ("a b\na\n", "line 2"), ("a b a\n", "line 1"), (" b\n", "line 1")]
    {
        let message = refusal(byte_level(vocab, merges), "merges.txt");
        assert!(message.contains(reason), "{message}");
    }
    // A token at the far end of the range takes no memory for those before it.
    let far = byte_level(r#"{"a": 4294967295}"#, "").unwrap();
    assert_eq!((far.vocab_size(), far.encode("a", 9).unwrap().ids), (1 << 32, vec![u32::MAX]));
}

#[test]
fn configurations_are_refused_with_the_reason() {
    let message = |path: &Path, without: &[&str], config: Value| {
        let folder = copy(path, without, &config);
        TextTokenizer::from_folder(&folder.0).unwrap_err().to_string()
    };
    let (bytes, spm) = (fixture("tokenizer-roberta"), fixture("tokenizer-t5"));
    let class = |name: &str, key: &str, value: Value| json!({"tokenizer_class": name, key: value});
    let roberta = |key: &str, value: Value| class("RobertaTokenizer", key, value);
    for (config, expected) in [
        (roberta("added_tokens_decoder", json!({"x": {"content": "y"}})), "added tokens by id"),
        (roberta("added_tokens_decoder", json!({"9": "y"})), "added tokens by id"),
        (roberta("added_tokens_decoder", json!([])), "`added_tokens_decoder` is not an object"),
        (roberta("added_tokens_decoder", json!({"900": {"content": "y"}})), "`y` has id 900"),
        (roberta("extra_special_tokens", json!("y")), "a list of tokens"),
        (roberta("extra_special_tokens", json!([1])), "a list of tokens"),
        (roberta("added_tokens_decoder", Value::Null), "looked for tokenizer.json and vocab.json, merges.txt"),
        (class("WhisperTokenizer", "legacy", json!(true)), "WhisperTokenizer"),
    ] {
        let without: &[_] = if config["added_tokens_decoder"].is_null() && config["extra_special_tokens"].is_null() {
            &["tokenizer.json", "merges.txt"]
        } else {
            &["tokenizer.json", "special_tokens_map.json"]
        };
        let found = message(&bytes, without, config);
        assert!(found.contains(expected), "{found}, expected {expected}");
    }
    for (value, expected) in
        [(json!(-1), "`extra_ids` is -1"), (json!(1u64 << 60), "`extra_ids` is 1152921504606846976")]
    {
        let found = message(&spm, &[], class("T5Tokenizer", "extra_ids", value));
        assert!(found.contains(expected), "{found}");
    }
    let found = message(&spm, &[], class("T5Tokenizer", "eos_token", json!("</t>")));
    assert!(found.contains("spiece.model: tokenizer: the special token `</t>` is missing"), "{found}");
    let found = message(&spm, &[], class("T5Tokenizer", "legacy", json!("no")));
    assert!(found.contains("`legacy` is \"no\""), "{found}");
}
