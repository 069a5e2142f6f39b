//! What the metadata says of tokens is checked and used: types, ids of special tokens, flags, character maps, ends.

use std::path::{Path, PathBuf};

use kin_infer::generate::{ChatOptions, ChatTemplate, GenerationDefaults, Messages};
use kin_infer::tokenizer::{TextTokenizer, has_tokenizer, window};

use super::writer::{ARRAY, BOOL, Changed, F32, Gguf, I32, TEXT, U32, array, text};
use super::{Folder, fixture};

const TYPES: &str = "tokenizer.ggml.token_type";
const MAP: &str = "tokenizer.ggml.precompiled_charsmap";

fn kinds(kinds: &[i32]) -> Vec<u8> {
    array(I32, kinds.len(), &kinds.iter().flat_map(|k| k.to_le_bytes()).collect::<Vec<_>>())
}

fn load(path: &Path) -> TextTokenizer {
    TextTokenizer::from_folder(path).unwrap_or_else(|e| panic!("{e}"))
}

fn ids(path: &Path, text: &str) -> Vec<u32> {
    load(path).encode(text, 99).unwrap().ids
}

#[track_caller]
fn assert_refused(path: &Path, expected: &str) {
    let error = TextTokenizer::from_folder(path).unwrap_err().to_string();
    assert!(error.contains(expected) && error.contains("m.gguf"), "{expected}: {error}");
}

/// A WordPiece vocabulary, with ids of special tokens.
fn words(tokens: &[&str], types: &[i32], special: &[(&str, u32)]) -> Gguf {
    let mut file = Gguf::new("bert");
    file.pair("tokenizer.ggml.model", TEXT, &text("bert")).texts("tokenizer.ggml.tokens", tokens);
    file.pair(TYPES, ARRAY, &kinds(types));
    for (role, id) in special {
        file.size(&format!("tokenizer.ggml.{role}_token_id"), *id);
    }
    file
}

const USUAL: [(&str, u32); 3] = [("unknown", 0), ("bos", 1), ("seperator", 2)];

#[test]
fn special_tokens_of_words_are_those_with_the_files_ids() {
    let folder = Folder::new();
    let of = |file: Gguf| folder.write("m.gguf", &file.bytes());
    // Whatever they are called, and whatever else is called [CLS].
    let tokens = ["<u>", "<c>", "<e>", "\u{2581}a", "\u{2581}[CLS]"];
    assert_eq!(ids(&of(words(&tokens, &[3, 3, 3, 1, 1], &USUAL)), "a b"), [1, 3, 0, 2]);
    // A token that continues a word.
    let ends = [("unknown", 0), ("bos", 1), ("seperator", 4)];
    assert_eq!(
        ids(&of(words(&["<u>", "<c>", "\u{2581}a", "\u{2581}ing", "ing"], &[3, 3, 1, 1, 1], &ends)), "a"),
        [1, 2, 4]
    );
    // The older key of the first token is the stronger.
    let older = [("unknown", 0), ("bos", 3), ("cls", 1), ("seperator", 2)];
    assert_eq!(ids(&of(words(&["<u>", "<c>", "<e>", "<s>", "\u{2581}a"], &[3, 3, 3, 3, 1], &older)), "a"), [1, 4, 2]);
    // Two tokens with one text.
    let twice = ["[UNK]", "[CLS]", "[SEP]", "\u{2581}[CLS]"];
    assert_refused(
        &of(words(&twice, &[3, 3, 3, 1], &USUAL)),
        "`tokenizer.ggml.bos_token_id` is 1, expected the id of `[CLS]`, which is 3",
    );
    let named = ["[UNK]", "[CLS]", "[SEP]", "\u{2581}a"];
    for (left_out, key) in [(0, "unknown_token_id"), (1, "bos_token_id"), (2, "seperator_token_id")] {
        let mut special = USUAL.to_vec();
        special.remove(left_out);
        assert_refused(&of(words(&named, &[3, 3, 3, 1], &special)), &format!("`tokenizer.ggml.{key}` is absent"));
    }
}

#[test]
fn accents_are_stripped_as_the_file_says() {
    let folder = Folder::new();
    let tokens = ["[UNK]", "[CLS]", "[SEP]", "\u{2581}e", "\u{2581}é", "\u{2581}E"];
    for (lower, strips, expected) in
        [(true, None, 3), (true, Some(false), 4), (false, None, 4), (false, Some(true), 3), (true, Some(true), 3)]
    {
        let mut file = words(&tokens, &[3, 3, 3, 1, 1, 1], &USUAL);
        file.pair("tokenizer.ggml.normalizer.lowercase", BOOL, &[lower.into()]);
        if let Some(strips) = strips {
            file.pair("tokenizer.ggml.normalizer.strip_accents", BOOL, &[u8::from(strips)]);
        }
        let path = folder.write("m.gguf", &file.bytes());
        assert_eq!(ids(&path, "é"), [1, expected, 2], "{lower} {strips:?}");
    }
}

fn changed(folder: &Folder, name: &str, change: impl FnOnce(&mut Changed)) -> PathBuf {
    let mut file = Changed::of(&fixture(&format!("gguf-tokenizer-{name}.gguf")));
    change(&mut file);
    folder.write("m.gguf", &file.bytes())
}

#[test]
fn flags_that_contradict_a_kinds_template_are_refused() {
    let folder = Folder::new();
    let flags = |name: &str, flags: &[(&str, bool)]| {
        changed(&folder, name, |file| {
            for (key, flag) in flags {
                file.flag(&format!("tokenizer.ggml.{key}"), *flag);
            }
        })
    };
    for (name, set, expected) in [
        ("bert", &[("add_bos_token", false)][..], "`tokenizer.ggml.add_bos_token` is false, expected true"),
        ("bert", &[("add_eos_token", false), ("add_sep_token", false)], "`tokenizer.ggml.add_eos_token` is false"),
        ("roberta", &[("add_bos_token", false)], "`tokenizer.ggml.add_bos_token` is false"),
        ("roberta", &[("add_eos_token", false), ("add_sep_token", true)], "`tokenizer.ggml.add_eos_token` is false"),
        ("xlm-roberta", &[("add_eos_token", false)], "`tokenizer.ggml.add_eos_token` is false"),
        ("t5", &[("add_eos_token", false)], "`tokenizer.ggml.add_eos_token` is false"),
        (
            "qwen2",
            &[("add_bos_token", true)],
            "`tokenizer.ggml.add_bos_token` is true, expected false, for the file names",
        ),
    ] {
        assert_refused(&flags(name, set), expected);
    }
    for (name, set) in [
        ("bert", &[("add_bos_token", true), ("add_eos_token", true), ("add_sep_token", false)][..]),
        ("bert", &[("add_eos_token", false), ("add_sep_token", true)]),
        ("roberta", &[("add_bos_token", true), ("add_eos_token", true), ("add_sep_token", true)]),
        ("t5", &[("add_bos_token", false), ("add_eos_token", true)]),
        ("qwen2", &[("add_eos_token", false), ("add_sep_token", false)]),
    ] {
        assert_eq!(
            ids(&flags(name, set), "some text"),
            ids(&fixture(&format!("tokenizer-{name}")), "some text"),
            "{name}"
        );
    }
    // Decoders have what the flags ask for.
    let ended = ids(&flags("llama", &[("add_bos_token", false), ("add_eos_token", true)]), "some text");
    let usual = ids(&fixture("tokenizer-llama"), "some text");
    assert_eq!(ended, [&usual[1..], &[2]].concat());
}

#[test]
fn token_types_are_whole_numbers_from_1_to_6() {
    let folder = Folder::new();
    let tokens = ["[UNK]", "[CLS]", "[SEP]"];
    for wrong in [-1, 0, 7, i32::MAX] {
        let path = folder.write("m.gguf", &words(&tokens, &[3, 3, wrong], &USUAL).bytes());
        assert_refused(&path, "`tokenizer.ggml.token_type` is an array of 3, expected a type from 1 to 6");
    }
    assert_refused(&folder.write("m.gguf", &words(&tokens, &[3, 3], &USUAL).bytes()), "for each of 3 tokens");
    for (kind, value) in [(F32, 3f32.to_le_bytes()), (F32, f32::NAN.to_le_bytes())] {
        let path = changed(&folder, "bert", |file| {
            let count = array(kind, 1, &value);
            file.set(TYPES, ARRAY, &count);
        });
        assert_refused(&path, "expected a type from 1 to 6");
    }
}

#[test]
fn a_character_map_is_an_array_of_bytes() {
    let folder = Folder::new();
    let sample = "ﬁne ① Ｗｉｄｅ";
    let expected = ids(&fixture("tokenizer-t5"), sample);
    let bytes: Vec<u8> = {
        let file = kin_infer::weights::GgufFile::open(&fixture("gguf-tokenizer-t5.gguf")).unwrap();
        file.numbers(MAP).unwrap().unwrap().into_iter().map(|byte| byte as u8).collect()
    };
    let signed: Vec<u8> = bytes.iter().flat_map(|b| i32::from(b.cast_signed()).to_le_bytes()).collect();
    let map = |kind: u32, count: usize, elements: &[u8]| {
        let value = array(kind, count, elements);
        changed(&folder, "t5", |file| {
            file.set(MAP, ARRAY, &value);
        })
    };
    assert_eq!(ids(&map(I32, bytes.len(), &signed), sample), expected);
    for (kind, value) in [(U32, 256u32.to_le_bytes()), (I32, (-129i32).to_le_bytes()), (F32, 1f32.to_le_bytes())] {
        assert_refused(
            &map(kind, 1, &value),
            "`tokenizer.ggml.precompiled_charsmap` is an array of 1, expected an array of bytes",
        );
    }
}

/// DBRX and Phi-4 cut words as LLaMA 3 does, merge as others do, and begin a text with nothing.
#[test]
fn words_without_merges_come_out_whole_in_llama_3_alone() {
    let folder = Folder::new();
    let with = |pre: &str, text_of: &str| {
        let mut file = Gguf::new("phi3");
        let tokens = ["a", "b", "c", "abc", "ab", "1", "2", "3", "4", "12", "34", "<|endoftext|>"];
        file.pair("tokenizer.ggml.model", TEXT, &text("gpt2")).pair("tokenizer.ggml.pre", TEXT, &text(pre));
        file.texts("tokenizer.ggml.tokens", &tokens).texts("tokenizer.ggml.merges", &["a b", "1 2", "3 4"]);
        file.size("tokenizer.ggml.bos_token_id", 11);
        ids(&folder.write("m.gguf", &file.bytes()), text_of)
    };
    assert_eq!((with("llama-bpe", "abc"), with("llama-bpe", "1234")), (vec![11, 3], vec![11, 9, 7, 8]));
    for pre in ["dbrx", "smaug-bpe"] {
        assert_eq!((with(pre, "abc"), with(pre, "1234")), (vec![4, 2], vec![9, 7, 8]), "{pre}");
    }
    assert_eq!(with("gpt-2", "1234"), [9, 10]);
}

#[test]
fn ends_of_turns_are_known_by_their_text_where_no_key_names_them() {
    let folder = Folder::new();
    let tokens = ["a", "b", "<|eot_id|>", "<|im_end|>", "<|end|>", "</s>", "<|eom_id|>"];
    let stops = |special: &[(&str, u32)]| {
        let mut file = Gguf::new("llama");
        file.pair("tokenizer.ggml.model", TEXT, &text("gpt2")).texts("tokenizer.ggml.tokens", &tokens);
        file.pair(TYPES, ARRAY, &kinds(&[1, 1, 3, 4, 1, 3, 3]));
        for (role, id) in special {
            file.size(&format!("tokenizer.ggml.{role}_token_id"), *id);
        }
        let path = folder.write("m.gguf", &file.bytes());
        GenerationDefaults::from_folder(&path).unwrap().params().stop_token_ids().to_vec()
    };
    assert_eq!(stops(&[("eos", 5)]), [5, 2, 3, 6]);
    assert_eq!(stops(&[]), [2, 3, 6]);
    assert_eq!(stops(&[("eos", 5), ("eot", 2)]), [5, 2]);
    assert_eq!(stops(&[("eos", 5), ("eot", 2), ("eom", 6)]), [5, 2, 6]);
}

#[test]
fn tokens_that_may_not_come_are_refused() {
    let folder = Folder::new();
    let path = changed(&folder, "qwen2", |file| {
        file.set("tokenizer.ggml.suppress_tokens", ARRAY, &kinds(&[1, 2]));
    });
    let error = GenerationDefaults::from_folder(&path).unwrap_err().to_string();
    assert!(error.contains("m.gguf: the metadata key `tokenizer.ggml.suppress_tokens` is an array of 2"), "{error}");
}

#[test]
fn a_folder_with_one_gguf_file_has_its_settings() {
    let folder = Folder::new();
    std::fs::copy(fixture("gguf-tokenizer-qwen2.gguf"), folder.0.join("m.gguf")).unwrap();
    let found = GenerationDefaults::from_folder(&folder.0).unwrap();
    assert_eq!((found.params().stop_token_ids(), found.eos_token.as_deref()), (&[522, 520][..], Some("<|im_end|>")));
    let template = ChatTemplate::from_folder(&folder.0).unwrap().unwrap();
    let messages = Messages::from_json(r#"[{"role": "user", "content": "hi"}]"#).unwrap();
    assert_eq!(template.render(&messages, &ChatOptions::new()).unwrap(), "<|im_start|>user\nhi<|im_end|>\n");
    let window = window(&folder.0, Some(8)).unwrap().unwrap();
    assert_eq!((window.limit, window.source.as_str()), (8, "the context length of the GGUF file"));
    assert!(has_tokenizer(&folder.0).unwrap() && has_tokenizer(&folder.0.join("m.gguf")).unwrap());
    assert!(!has_tokenizer(&fixture("gguf-llama-gqa.gguf")).unwrap() && !has_tokenizer(&fixture("llama-gqa")).unwrap());
    assert!(has_tokenizer(&fixture("tokenizer-bert")).unwrap());
    std::fs::copy(fixture("gguf-tokenizer-bert.gguf"), folder.0.join("n.gguf")).unwrap();
    let error = has_tokenizer(&folder.0).unwrap_err().to_string();
    assert!(error.contains("several GGUF files: m.gguf, n.gguf; give the path of one of them"), "{error}");
}

/// A vocabulary of pairs: every text of up to `longest` letters a.
fn letters(longest: usize) -> Gguf {
    let tokens: Vec<String> =
        std::iter::once("<unk>".to_string()).chain((1..=longest).map(|n| "a".repeat(n))).collect();
    let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
    let scores: Vec<u8> = (0..tokens.len()).flat_map(|i| (-(i as f32)).to_le_bytes()).collect();
    let types: Vec<i32> = (0..tokens.len()).map(|i| if i == 0 { 2 } else { 1 }).collect();
    let mut file = Gguf::new("llama");
    file.pair("tokenizer.ggml.model", TEXT, &text("llama")).texts("tokenizer.ggml.tokens", &tokens);
    file.pair("tokenizer.ggml.scores", ARRAY, &array(F32, tokens.len(), &scores)).pair(TYPES, ARRAY, &kinds(&types));
    file.pair("tokenizer.ggml.add_bos_token", BOOL, &[0]).pair("tokenizer.ggml.add_space_prefix", BOOL, &[0]);
    file
}

#[test]
fn a_vocabulary_of_more_merges_than_any_is_refused() {
    let folder = Folder::new();
    // 190 merges, and the longest piece comes out.
    assert_eq!(ids(&folder.write("m.gguf", &letters(20).bytes()), &"a".repeat(16)), [16]);
    let path = folder.write("m.gguf", &letters(100).bytes());
    assert_refused(&path, "more than 1616 merges make the 101 pieces");
}
