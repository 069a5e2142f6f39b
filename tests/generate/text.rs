//! Text in, text out: against transformers, and where a text ends.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kin_infer::generate::{ChatOptions, FinishReason, Messages, SamplingParams, TextGenerator};
use serde_json::{Value, json};

use crate::common::fixture;
use crate::{ids, json};

const FOLDERS: [&str; 2] = ["gen-llama", "gen-bytes"];

fn generator(name: &str) -> TextGenerator {
    TextGenerator::load(&fixture(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// A copy of a fixture with keys of one of its JSON files changed; null takes a key away.
fn changed(name: &str, file: &str, changes: Value) -> TextGenerator {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("text-{name}"));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    for entry in std::fs::read_dir(fixture(name)).unwrap().flatten() {
        std::fs::copy(entry.path(), folder.join(entry.file_name())).unwrap();
    }
    let mut value = json(&format!("{name}/{file}"));
    for (key, change) in changes.as_object().unwrap() {
        value[key] = change.clone();
    }
    std::fs::write(folder.join(file), value.to_string()).unwrap();
    TextGenerator::load(&folder).unwrap()
}

#[test]
fn prompts_are_continued_as_by_transformers() {
    for name in FOLDERS {
        let (generator, reference) = (generator(name), json(&format!("{name}/expected.json")));
        let max = generator.defaults().max_new_tokens.unwrap();
        let mut stopped = 0;
        for case in reference["texts"].as_array().unwrap() {
            let prompt = case["prompt"].as_str().unwrap();
            assert_eq!(generator.encode(prompt).unwrap(), ids(&case["ids"]), "{name}: {prompt:?}");
            let found = generator.generate(prompt, max, &mut generator.params()).unwrap();
            assert_eq!(found.tokens, ids(&case["tokens"]), "{name}: {prompt:?}");
            assert_eq!(found.text, case["text"], "{name}: {prompt:?}");
            stopped += usize::from(matches!(found.finish, FinishReason::StopToken(_)));
        }
        assert!(stopped > 0, "{name}: no stop token");
        for case in reference["chats"].as_array().unwrap() {
            let messages = Messages::from_json(case["messages"].as_str().unwrap()).unwrap();
            let prompt = generator.chat_prompt(&messages, &ChatOptions::new()).unwrap();
            assert_eq!(prompt, ids(&case["ids"]), "{name}: {}", case["messages"]);
            let found = generator.generate_all(&[&prompt], max, &mut [generator.params()]).pop().unwrap().unwrap();
            assert_eq!((found.tokens, found.text.as_str()), (ids(&case["tokens"]), case["text"].as_str().unwrap()));
        }
    }
}

/// The pieces of a stream are whole characters and make the text; a batch gives every prompt the same.
#[test]
fn streams_and_batches_give_the_same_text() {
    for name in FOLDERS {
        let generator = generator(name);
        let reference = json(&format!("{name}/expected.json"));
        let prompts: Vec<Vec<u32>> = reference["texts"].as_array().unwrap().iter().map(|c| ids(&c["ids"])).collect();
        let slices: Vec<&[u32]> = prompts.iter().map(Vec::as_slice).collect();
        let params =
            |i: usize| generator.params().temperature(1.5).seed(i as u64).stop_texts(["p c", "e", "\u{fffd}E"]);
        let mut all: Vec<SamplingParams> = (0..prompts.len()).map(params).collect();
        let batch = generator.generate_all(&slices, 30, &mut all);
        let mut pieces = 0;
        for (i, (prompt, found)) in prompts.iter().zip(batch).enumerate() {
            let found = found.unwrap();
            let mut own = params(i);
            let mut stream = generator.stream(prompt, 30, &mut own).unwrap();
            let tokens: Vec<_> = stream.by_ref().map(Result::unwrap).collect();
            assert_eq!(stream.finish_reason(), Some(&found.finish));
            assert_eq!(stream.rest(), "");
            assert_eq!(tokens.last().unwrap().finish, Some(found.finish.clone()));
            assert_eq!(tokens.iter().map(|t| t.id).collect::<Vec<_>>(), found.tokens);
            assert_eq!(tokens.iter().map(|t| t.text.as_str()).collect::<String>(), found.text);
            pieces += tokens.iter().filter(|t| !t.text.is_empty()).count();
            match &found.finish {
                FinishReason::StopText(stop) => assert!(["p c", "e", "\u{fffd}E"].contains(&stop.as_str())),
                _ => assert!(!found.text.contains('e')),
            }
        }
        assert!(pieces > 10, "{name}: only {pieces} pieces");
    }
}

/// Every part of a text stops it where it begins, however it lies across the tokens.
#[test]
fn stop_texts_cut_exactly() {
    for name in FOLDERS {
        let generator = generator(name);
        let reference = json(&format!("{name}/expected.json"));
        for case in reference["texts"].as_array().unwrap() {
            let (prompt, text) = (case["prompt"].as_str().unwrap(), case["text"].as_str().unwrap());
            let letters: Vec<char> = text.chars().collect();
            for len in [1, 2, 5] {
                for stop in letters.windows(len).step_by(3).map(|w| w.iter().collect::<String>()) {
                    let mut params = generator.params().stop_texts([stop.clone(), "never\u{1}".to_string()]);
                    let found = generator.generate(prompt, 24, &mut params).unwrap();
                    assert_eq!(found.text, text[..text.find(&stop).unwrap()], "{name}: {prompt:?}, {stop:?}");
                    assert_eq!(found.finish, FinishReason::StopText(stop), "{name}: {prompt:?}");
                    assert!(found.tokens.len() <= ids(&case["tokens"]).len());
                }
            }
        }
    }
}

/// A special token has no text; as a stop text it stops all the same.
#[test]
fn a_special_token_is_a_stop_text() {
    let generator = changed("gen-bytes", "generation_config.json", json!({"eos_token_id": null}));
    let params = |seed| generator.params().temperature(30.0).seed(seed).stop_ids([]);
    // A seed that draws a special token in the middle.
    let drawn = (0..20).find_map(|seed| {
        let whole = generator.generate("x", 80, &mut params(seed)).unwrap().tokens;
        let at = whole.iter().position(|t| *t >= 520).filter(|at| (1..79).contains(at))?;
        Some((seed, whole, at))
    });
    let (seed, whole, at) = drawn.unwrap();
    let token = generator.tokenizer().token(whole[at]).unwrap();
    let found = generator.generate("x", 80, &mut params(seed).stop_texts([token])).unwrap();
    assert_eq!((found.tokens.as_slice(), found.finish), (&whole[..=at], FinishReason::StopToken(whole[at])));
}

#[test]
fn stop_ids_fall_back_from_file_to_file() {
    let shown = |generator: &TextGenerator| format!("{:?}", generator.params());
    let expected = |ids: &[u32]| format!("{:?}", SamplingParams::new().stop_ids(ids.iter().copied()).vocab_limit(523));
    let own = ids(&json("gen-bytes/generation_config.json")["eos_token_id"]);
    assert_eq!(shown(&generator("gen-bytes")), expected(&own));
    assert_eq!(shown(&changed("gen-bytes", "generation_config.json", json!({"eos_token_id": null}))), expected(&[522]));
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("text-gen-bytes-eos");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    for file in ["model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(fixture("gen-bytes").join(file), folder.join(file)).unwrap();
    }
    let mut config = json("gen-bytes/config.json");
    config.as_object_mut().unwrap().remove("eos_token_id");
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let bare = TextGenerator::load(&folder).unwrap();
    assert_eq!(shown(&bare), expected(&[522]), "the tokenizer's eos_token");
    assert!(bare.chat_template().is_some() && bare.defaults().max_new_tokens.is_none());
    // Without a beginning token an empty prompt has nothing to continue.
    config.as_object_mut().unwrap().remove("bos_token_id");
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let error = TextGenerator::load(&folder).unwrap().encode("").unwrap_err().to_string();
    assert!(error.contains("bos_token_id"), "{error}");
}

#[test]
fn there_is_one_beginning_token() {
    let with = |source: &str| changed("gen-llama", "tokenizer_config.json", json!({"chat_template": source}));
    let mut messages = Messages::new();
    messages.push("user", "row");
    for source in ["{{ messages[0].content }}", "{{ bos_token }}{{ messages[0].content }}"] {
        let generator = with(source);
        let ids = generator.chat_prompt(&messages, &ChatOptions::new()).unwrap();
        assert_eq!(ids.iter().filter(|id| **id == 1).count(), 1, "{source}");
        assert_eq!(ids[0], 1);
        assert_eq!(generator.encode("<s>row").unwrap(), generator.encode("row").unwrap());
    }
    let none = changed("gen-llama", "tokenizer_config.json", json!({"chat_template": null}));
    let error = none.chat_prompt(&messages, &ChatOptions::new()).unwrap_err().to_string();
    assert!(error.contains("no chat template"), "{error}");
}

/// A conversation that grows turn by turn uses what the cache holds and gets the same answers.
#[test]
fn a_conversation_keeps_its_cache() {
    for name in FOLDERS {
        let generator = generator(name);
        let mut cache = generator.model().kv_cache().unwrap();
        let mut messages = Messages::new();
        for turn in ["Why?", "é 🙂", "rows"] {
            messages.push("user", turn);
            let prompt = generator.chat_prompt(&messages, &ChatOptions::new()).unwrap();
            let known = cache.ids().iter().zip(&prompt).take_while(|(a, b)| a == b).count();
            assert!(messages.len() == 1 || known > 5, "{name}: {known} tokens are known");
            let alone = generator.generate_all(&[&prompt], 8, &mut [generator.params()]).pop().unwrap().unwrap();
            let mut params = generator.params();
            let stream = generator.stream_cached(&mut cache, &prompt, 8, &mut params).unwrap();
            let text: String = stream.map(|t| t.unwrap().text).collect();
            assert_eq!(text, alone.text, "{name}: {turn}");
            messages.push("assistant", &text);
        }
    }
}

/// What was held back when a sequence is cancelled belongs to its text.
#[test]
fn a_cancelled_text_is_whole() {
    let generator = generator("gen-bytes");
    let case = json("gen-bytes/expected.json")["texts"][0].clone();
    let whole = case["text"].as_str().unwrap();
    let letters: Vec<char> = whole.chars().collect();
    let flag = Arc::new(AtomicBool::new(false));
    // All of the text but its end is held back: it begins a stop text.
    let stop: String = letters.iter().chain(&['!', '?']).collect();
    let mut params = generator.params().stop_texts([stop]).cancel(flag.clone());
    let mut stream = generator.stream(&ids(&case["ids"]), 24, &mut params).unwrap();
    let first: Vec<_> = stream.by_ref().take(6).map(Result::unwrap).collect();
    assert!(first.iter().all(|t| t.text.is_empty()));
    flag.store(true, Ordering::Relaxed);
    assert!(stream.next().is_none());
    let rest = stream.rest();
    let expected = generator.generate_all(&[&ids(&case["ids"])], 6, &mut [generator.params()]).pop().unwrap().unwrap();
    assert_eq!(rest, expected.text);
    assert!(!rest.is_empty() && stream.rest().is_empty());
}
