//! Generation: the choice of tokens, the loop, text, and conversations.

#[path = "generate/chat.rs"]
mod chat;
mod common;
#[path = "generate/decoding.rs"]
mod decoding;
#[path = "generate/defaults.rs"]
mod defaults;
#[path = "generate/sampling.rs"]
mod sampling;
#[path = "generate/text.rs"]
mod text;

use common::fixture;
use kin_infer::{BertConfig, BertModel};
use serde_json::Value;

fn load(name: &str) -> BertModel {
    let folder = fixture(name);
    BertModel::load(&folder, BertConfig::from_folder(&folder).unwrap()).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn json(path: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(fixture(path)).unwrap()).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect()
}

fn floats(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}
