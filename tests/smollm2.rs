//! A real decoder in one file, SmolLM2-135M-Instruct.Q4_1.gguf: tokens, texts and logits against transformers in float64 on
//! the dequantised weights.

mod common;

use common::{fixture, real_model};
use kin_infer::generate::{ChatOptions, Messages, TextGenerator};
use serde_json::Value;

const FILE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
/// Of logits that reach from about -10 to 34. The head is a Q8_0 matrix: its product quantises the last hidden state, which
/// moves logits by up to 0.18 on these prompts; the rest of the model is widened to f32.
const BOUND: f64 = 0.25;

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

#[test]
fn a_gguf_file_alone_generates_what_transformers_generates() {
    let Some(file) = real_model("smollm2", FILE, FILE) else { return };
    let expected: Value =
        serde_json::from_str(&std::fs::read_to_string(fixture("smollm2").join("expected.json")).unwrap()).unwrap();
    let cases = expected["cases"].as_array().unwrap();
    assert!(cases.len() >= 6);
    let generator = TextGenerator::load(&file).unwrap();
    let prompts: Vec<Vec<u32>> = cases.iter().map(|case| prompt(&generator, case)).collect();

    for (case, prompt) in cases.iter().zip(&prompts) {
        assert_eq!(*prompt, ids(&case["ids"]), "{case}");
        let mut cache = generator.model().kv_cache().unwrap();
        let logits = generator.model().prefill(&mut cache, prompt).unwrap();
        for pair in case["logits"].as_array().unwrap() {
            let (id, value) = (pair[0].as_u64().unwrap() as usize, pair[1].as_f64().unwrap());
            let off = (f64::from(logits[id]) - value).abs();
            assert!(off <= BOUND, "token {id} after {prompt:?}: {} for {value}, off by {off}", logits[id]);
        }
    }

    let slices: Vec<&[u32]> = prompts.iter().map(Vec::as_slice).collect();
    let longest = cases.iter().map(|case| ids(&case["tokens"]).len()).max().unwrap();
    let mut params = vec![generator.params().temperature(0.0); cases.len()];
    let results = generator.generate_all(&slices, longest, &mut params);
    // A conversation's reference chooses, somewhere, between tokens that lie closer than the head's rounding.
    let mut equal = 0;
    for (case, result) in cases.iter().zip(results).filter(|(case, _)| case["prompt"].is_string()) {
        let found = result.unwrap();
        equal += 1;
        assert_eq!(found.tokens, ids(&case["tokens"]), "{case}");
        assert_eq!(found.text, case["text"].as_str().unwrap(), "{case}");
    }
    assert!(equal >= 4);
}
