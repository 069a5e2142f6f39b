//! A real decoder in one file, SmolLM2-135M-Instruct.Q4_1.gguf: tokens, texts and logits against transformers in float64 on
//! the dequantised weights.

mod common;

use common::{fixture, real_model};
use kin_infer::generate::{ChatOptions, Generation, Messages, TextGenerator};
use kin_infer::gpu::create_compute;
use kin_infer::{LoadOptions, WeightForm};
use serde_json::Value;

const FILE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";

/// How far a logit may be off, of logits that reach from about -10 to 34. The head is a Q8_0 matrix: its product quantises
/// the last hidden state, which moves logits by up to 0.18 on these prompts; the rest of the model is widened to f32.
const STORED: f64 = 0.25;
/// The same with the head widened too: what binary32 loses against binary64.
const WIDENED: f64 = 2e-4;

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect()
}

fn prompt(generator: &TextGenerator, case: &Value) -> Vec<u32> {
    let Some(messages) = case["messages"].as_array() else {
        return generator.encode(case["prompt"].as_str().unwrap()).unwrap();
    };
    let mut conversation = Messages::new();
    for message in messages {
        conversation.push(message["role"].as_str().unwrap(), message["content"].as_str().unwrap());
    }
    generator.chat_prompt(&conversation, &ChatOptions::new()).unwrap()
}

fn cases() -> Vec<Value> {
    let text = std::fs::read_to_string(fixture("smollm2").join("expected.json")).unwrap();
    let expected: Value = serde_json::from_str(&text).unwrap();
    let cases = expected["cases"].as_array().unwrap().clone();
    assert_eq!(cases.iter().map(|case| case["messages"].is_array()).filter(|chat| *chat).count(), 2);
    assert_eq!(cases.len(), 6);
    cases
}

/// Checks ids and logits of the prompts, then generates greedily.
fn generated(generator: &TextGenerator, cases: &[Value], bound: f64) -> Vec<Generation> {
    let prompts: Vec<Vec<u32>> = cases.iter().map(|case| prompt(generator, case)).collect();
    for (case, prompt) in cases.iter().zip(&prompts) {
        assert_eq!(*prompt, ids(&case["ids"]), "{case}");
        let mut cache = generator.model().kv_cache().unwrap();
        let logits = generator.model().prefill(&mut cache, prompt).unwrap();
        for pair in case["logits"].as_array().unwrap() {
            let (id, value) = (pair[0].as_u64().unwrap() as usize, pair[1].as_f64().unwrap());
            let off = (f64::from(logits[id]) - value).abs();
            assert!(off <= bound, "token {id} after {prompt:?}: {} for {value}, off by {off}", logits[id]);
        }
    }
    let slices: Vec<&[u32]> = prompts.iter().map(Vec::as_slice).collect();
    let longest = cases.iter().map(|case| ids(&case["tokens"]).len()).max().unwrap();
    let mut params = vec![generator.params().temperature(0.0); cases.len()];
    let results = generator.generate_all(&slices, longest, &mut params);
    results.into_iter().map(Result::unwrap).collect()
}

#[test]
fn a_gguf_file_alone_generates_what_transformers_generates() {
    let Some(file) = real_model("smollm2", FILE, FILE) else { return };
    let (generator, cases) = (TextGenerator::load(&file).unwrap(), cases());
    let mut compared = 0;
    for (case, found) in cases.iter().zip(generated(&generator, &cases, STORED)) {
        let (expected, leads) = (ids(&case["tokens"]), case["leads"].as_array().unwrap());
        assert_eq!(leads.len(), expected.len());
        if case["prompt"].is_string() {
            assert_eq!(found.tokens, expected, "{case}");
            assert_eq!(found.text, case["text"].as_str().unwrap(), "{case}");
        } else {
            // Tokens are certain up to the first that leads by less than logits may be off.
            let certain = leads.iter().take_while(|lead| lead.as_f64().unwrap() > STORED).count();
            assert_eq!(found.tokens[..certain], expected[..certain], "{case}");
            compared += certain;
        }
    }
    assert_eq!(compared, 13, "tokens of the conversations");
}

#[test]
fn widened_to_f32_it_generates_what_transformers_generates_to_the_end() {
    let Some(file) = real_model("smollm2, widened", FILE, FILE) else { return };
    let options = LoadOptions { weights: WeightForm::F32, ..LoadOptions::default() };
    let generator = TextGenerator::load_with_options(&file, create_compute().unwrap(), options).unwrap();
    let cases = cases();
    for (case, found) in cases.iter().zip(generated(&generator, &cases, WIDENED)) {
        assert_eq!(found.tokens, ids(&case["tokens"]), "{case}");
        assert_eq!(found.text, case["text"].as_str().unwrap(), "{case}");
    }
}
