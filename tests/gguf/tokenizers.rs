//! Tokenizers in GGUF files against the folders that they were made of.

use std::fs;
use std::path::Path;

use kin_infer::Embedder;
use kin_infer::generate::{ChatOptions, ChatTemplate, GenerationDefaults, Messages};
use kin_infer::tokenizer::TextTokenizer;

use super::writer::{ARRAY, BOOL, F32, Gguf, TEXT, text};
use super::{Folder, fixture};

/// The texts that all references were made for.
fn texts() -> Vec<String> {
    let file = fs::read(fixture("tokenizer").join("texts.json")).unwrap();
    let value: serde_json::Value = serde_json::from_slice(&file).unwrap();
    serde_json::from_value(value["texts"].clone()).unwrap()
}

fn pair(name: &str) -> [TextTokenizer; 2] {
    let paths = [fixture(&format!("gguf-tokenizer-{name}.gguf")), fixture(&format!("tokenizer-{name}"))];
    paths.map(|path| TextTokenizer::from_folder(&path).unwrap_or_else(|e| panic!("{e}")))
}

#[test]
fn every_kind_gives_the_ids_and_texts_of_its_folder() {
    for name in ["llama", "gemma", "t5", "xlm-roberta", "gpt2", "qwen2", "llama3", "roberta", "bert"] {
        let [gguf, folder] = pair(name);
        let mut left_out = 0;
        for text in texts() {
            // The file has neither T5's sentinels nor, of RoBERTa's mask token, that it takes the space before it.
            if name == "t5" && text.contains("<extra_id") || name.ends_with("roberta") && text.contains("<mask>") {
                left_out += 1;
                continue;
            }
            let [found, expected] = [&gguf, &folder].map(|t| t.encode(&text, usize::MAX).unwrap());
            assert_eq!(found, expected, "{name}: {text:?}");
            for skip in [false, true] {
                let [found, expected] = [&gguf, &folder].map(|t| t.decode(&expected.ids, skip).unwrap());
                assert_eq!(found, expected, "{name}: {text:?}");
            }
        }
        for (a, b) in [("one text", "and another"), ("", "b"), ("a", "")] {
            let [found, expected] = [&gguf, &folder].map(|t| t.encode_pair(a, b, 9).unwrap());
            assert_eq!(found, expected, "{name}: {a:?} {b:?}");
        }
        assert_eq!(gguf.num_special_tokens(), folder.num_special_tokens(), "{name}");
        assert!(left_out <= 2, "{name}: {left_out} texts");
        // Not every file names a padding token.
        let named = !["llama", "gpt2", "llama3"].contains(&name);
        assert_eq!(gguf.pad_id(), folder.pad_id().filter(|_| named), "{name}");
    }
}

#[test]
fn a_file_with_a_tokenizer_is_an_embedder() {
    let folder = Folder::new();
    for entry in fs::read_dir(fixture("st-tiny")).unwrap().flatten().filter(|e| e.path().is_file()) {
        let name = entry.file_name().into_string().unwrap();
        // What is left means mean pooling, and a length of 1.
        if !["modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"].contains(&name.as_str())
        {
            fs::copy(entry.path(), folder.0.join(name)).unwrap();
        }
    }
    let texts = ["a tree of files", "What is it?", ""];
    let [found, expected] = [fixture("gguf-st-tiny.gguf"), folder.0.clone()].map(|path| {
        let embedder = Embedder::load(&path).unwrap_or_else(|e| panic!("{e}"));
        embedder.embed(&texts).unwrap()
    });
    let bits = |v: &[Vec<f32>]| v.iter().flatten().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&found), bits(&expected));
    assert!(Embedder::load(&fixture("gguf-st-tiny.gguf")).unwrap().assumptions().is_empty());
}

#[test]
fn chat_templates_and_ends_of_texts_are_the_files() {
    let messages = Messages::from_json(r#"[{"role": "user", "content": "hi"}]"#).unwrap();
    let path = fixture("gguf-tokenizer-qwen2.gguf");
    let template = ChatTemplate::from_folder(&path).unwrap().unwrap();
    let rendered = template.render(&messages, &ChatOptions::default()).unwrap();
    assert_eq!(rendered, "<|im_start|>user\nhi<|im_end|>\n");
    let params = GenerationDefaults::from_folder(&path).unwrap().params();
    assert_eq!(params.stop_token_ids(), [522, 520]);
    let path = fixture("gguf-tokenizer-llama3.gguf");
    let template = ChatTemplate::from_folder(&path).unwrap().unwrap();
    assert_eq!(template.names().collect::<Vec<_>>(), ["default", "tool_use"]);
    assert_eq!(template.render(&messages, &ChatOptions::default()).unwrap(), "<|begin_of_text|>hi");
    assert_eq!(GenerationDefaults::from_folder(&path).unwrap().bos_id, Some(520));
    assert!(ChatTemplate::from_folder(&fixture("gguf-tokenizer-gpt2.gguf")).unwrap().is_none());
}

#[test]
fn a_cased_vocabulary_stays_cased() {
    let folder = Folder::new();
    let encode = |words: &[&str], key: Option<bool>| {
        let mut file = Gguf::new("bert");
        file.pair("tokenizer.ggml.model", TEXT, &text("bert"));
        let tokens: Vec<&str> = ["[UNK]", "[CLS]", "[SEP]"].iter().chain(words).copied().collect();
        let mut kinds = 5u32.to_le_bytes().to_vec();
        kinds.extend((tokens.len() as u64).to_le_bytes());
        (0..tokens.len()).for_each(|i| kinds.extend((if i < 3 { 3u32 } else { 1 }).to_le_bytes()));
        file.texts("tokenizer.ggml.tokens", &tokens).pair("tokenizer.ggml.token_type", ARRAY, &kinds);
        file.size("tokenizer.ggml.unknown_token_id", 0).size("tokenizer.ggml.bos_token_id", 1);
        file.size("tokenizer.ggml.seperator_token_id", 2);
        if let Some(lower) = key {
            file.pair("tokenizer.ggml.normalizer.lowercase", BOOL, &[u8::from(lower)]);
        }
        let path = folder.write("m.gguf", &file.bytes());
        TextTokenizer::from_folder(&path).unwrap().encode("Abc abc", 9).unwrap().ids
    };
    assert_eq!(encode(&["\u{2581}Abc", "\u{2581}abc"], None), [1, 3, 4, 2]);
    assert_eq!(encode(&["\u{2581}[X]", "\u{2581}abc"], None), [1, 4, 4, 2]);
    assert_eq!(encode(&["\u{2581}Abc", "\u{2581}abc"], Some(true)), [1, 4, 4, 2]);
    assert_eq!(encode(&["\u{2581}a", "bc"], None), [1, 3, 4, 3, 4, 2], "what continues a word has no mark");
}

fn refused(path: &Path, expected: &str) {
    let error = TextTokenizer::from_folder(path).unwrap_err().to_string();
    assert!(error.contains(expected), "{expected}: {error}");
}

/// A value for a key of the metadata.
enum New<'a> {
    Text(&'a str),
    Texts(&'a [&'a str]),
    Size(u32),
}

/// A vocabulary of byte-level BPE, with other or more keys.
fn changed(key: &str, new: New) -> Vec<u8> {
    let mut file = Gguf::new("gpt2");
    let full = format!("tokenizer.ggml.{key}");
    match new {
        New::Text(value) => file.pair(&full, TEXT, &text(value)),
        New::Texts(values) => file.texts(&full, values),
        New::Size(value) => file.size(&full, value),
    };
    let missing = |other: &str| other != key;
    for (other, value) in [("model", "gpt2"), ("pre", "gpt-2")].into_iter().filter(|(other, _)| missing(other)) {
        file.pair(&format!("tokenizer.ggml.{other}"), TEXT, &text(value));
    }
    let lists: [(&str, &[&str]); 2] = [("tokens", &["a", "b", "ab", "c", "abc"]), ("merges", &["a b", "ab c"])];
    for (other, values) in lists.into_iter().filter(|(other, _)| missing(other)) {
        file.texts(&format!("tokenizer.ggml.{other}"), values);
    }
    file.bytes()
}

#[test]
fn vocabularies_that_are_wrong_are_refused() {
    let folder = Folder::new();
    let path = folder.write("m.gguf", &changed("eos_token_id", New::Size(3)));
    assert_eq!(TextTokenizer::from_folder(&path).unwrap().encode("abab", 9).unwrap().ids, [2, 2]);
    let cases = [
        ("model", New::Text("rwkv"), "\"rwkv\", expected gpt2, llama, bert or t5"),
        ("model", New::Size(1), "`tokenizer.ggml.model` is 1, expected a text"),
        ("pre", New::Text("tekken"), "\"tekken\", expected one of gpt-2,"),
        ("pre", New::Text("default"), "\"default\", expected one of gpt-2,"),
        ("tokens", New::Texts(&[]), "`tokenizer.ggml.tokens` is missing or empty"),
        ("tokens", New::Texts(&["a", "b", "a"]), "the token `a` stands twice"),
        ("merges", New::Texts(&["a b", "x y"]), "out of vocabulary"),
        // Merges that lead nowhere, or round in circles.
        ("merges", New::Texts(&["a b", "b a"]), "out of vocabulary"),
        ("merges", New::Texts(&["a "]), "merge 0: expected two tokens"),
        ("merges", New::Texts(&["a b", " "]), "merge 1: expected two tokens"),
        ("merges", New::Texts(&["a b c"]), "merge 0: expected two tokens"),
        ("merges", New::Texts(&["ab"]), "merge 0: expected two tokens"),
        ("merges", New::Size(3), "`tokenizer.ggml.merges` is 3, expected an array of texts"),
        ("eos_token_id", New::Size(5), "`tokenizer.ggml.eos_token_id` is 5, expected one of the ids of 5 tokens"),
        ("add_bos_token", New::Size(1), "`tokenizer.ggml.add_bos_token` is 1, expected true or false"),
        ("token_type", New::Texts(&["1"]), "expected a type from 1 to 6 for each of 5 tokens"),
    ];
    for (key, new, expected) in cases {
        refused(&folder.write("m.gguf", &changed(key, new)), expected);
    }
    refused(&folder.write("m.gguf", &Gguf::new("llama").bytes()), "the metadata key `tokenizer.ggml.model` is missing");
    let llama = |values: &[f32]| {
        let mut scores = F32.to_le_bytes().to_vec();
        scores.extend((values.len() as u64).to_le_bytes());
        values.iter().for_each(|v| scores.extend(v.to_le_bytes()));
        let mut file = Gguf::new("llama");
        file.pair("tokenizer.ggml.model", TEXT, &text("llama")).texts("tokenizer.ggml.tokens", &["<unk>", "a"]);
        file.pair("tokenizer.ggml.scores", ARRAY, &scores).bytes()
    };
    refused(&folder.write("m.gguf", &llama(&[0.0])), "a score for each of 2 tokens");
    refused(&folder.write("m.gguf", &llama(&[0.0, f32::NAN])), "has the score NaN");
    refused(&folder.write("m.gguf", &llama(&[0.0, 0.0])), "not the one piece marked as unknown");
}
