//! The keys of LLaMA and its likes.

use serde_json::{Map, Value, json};

use super::config::Keys;
use super::{Family, rope};
use crate::error::Result;

const WINDOW: &str = "attention.sliding_window";
const PATTERN: &str = "attention.sliding_window_pattern";

/// Sets the keys of a decoder with rotary positions.
pub(super) fn keys(keys: &Keys, family: &Family, map: &mut Map<String, Value>) -> Result<()> {
    keys.causal(true)?;
    let dim = keys.head_dim()?;
    map.insert("head_dim".into(), json!(dim));
    map.insert("num_key_value_heads".into(), json!(keys.kv_heads()?));
    map.insert("attention_bias".into(), json!(keys.has("blk.0.attn_q.bias") || keys.has("blk.0.attn_qkv.bias")));
    map.insert("mlp_bias".into(), json!(keys.has("blk.0.ffn_up.bias")));
    rope::keys(keys, family, dim, map)?;
    match family.model_type {
        "llama" => {
            if let Some(window) = window(keys)? {
                map.insert("model_type".into(), json!("mistral"));
                map.insert("sliding_window".into(), json!(window));
            }
        }
        "phi3" => {
            map.insert("sliding_window".into(), json!(window(keys)?));
        }
        "gemma2" => gemma2(keys, map)?,
        "gemma3_text" => gemma3(keys, map)?,
        _ => {}
    }
    Ok(())
}

/// How many tokens see each other; 0 is all.
fn window(keys: &Keys) -> Result<Option<usize>> {
    Ok(keys.size(WINDOW)?.filter(|window| *window > 0))
}

/// Gemma 2, each second layer of which has a window.
fn gemma2(keys: &Keys, map: &mut Map<String, Value>) -> Result<()> {
    keys.refuse(PATTERN, 2.0)?;
    let wrong = || keys.file.wrong(&keys.name(WINDOW), "at least 1");
    let window = if keys.stands(WINDOW) { window(keys)?.ok_or_else(wrong)? } else { 4096 };
    map.insert("sliding_window".into(), json!(window));
    scale(keys, 46, map)?;
    cap(keys, "attn_logit_softcapping", map)?;
    cap(keys, "final_logit_softcapping", map)
}

/// Gemma 3, whose layers with windows have a rotation of their own.
fn gemma3(keys: &Keys, map: &mut Map<String, Value>) -> Result<()> {
    let window = window(keys)?;
    map.insert("sliding_window".into(), json!(window));
    scale(keys, 62, map)?;
    cap(keys, "final_logit_softcapping", map)?;
    let local = keys.positive("rope.freq_base_swa")?.unwrap_or(10_000.0);
    map.insert("rope_local_base_freq".into(), json!(local));
    let slides = sliding_layers(keys, window.is_some())?;
    let name = |slides: &bool| if *slides { "sliding_attention" } else { "full_attention" };
    map.insert("layer_types".into(), json!(slides.iter().map(name).collect::<Vec<_>>()));
    Ok(())
}

/// The scale of scores, which llama.cpp knows by the model's size: the 27B models, of `largest` layers, scale by the
/// features that a head would have without a key of its own.
fn scale(keys: &Keys, largest: usize, map: &mut Map<String, Value>) -> Result<()> {
    let key = "attention.scale";
    let scalar = match keys.number(key)? {
        Some(scale) if (1e-6..=1e6).contains(&scale) => 1.0 / (scale * scale),
        Some(_) => return Err(keys.file.wrong(&keys.name(key), "a number from 0.000001 to 1000000")),
        None if keys.layers()? == largest => (keys.hidden()? / keys.heads()?) as f64,
        None => keys.head_dim()? as f64,
    };
    map.insert("query_pre_attn_scalar".into(), json!(scalar));
    Ok(())
}

/// A cap of scores or logits; 0 is none.
fn cap(keys: &Keys, key: &str, map: &mut Map<String, Value>) -> Result<()> {
    match keys.number(key)? {
        Some(0.0) => map.insert(key.into(), Value::Null),
        Some(_) => map.insert(key.into(), json!(keys.positive(key)?)),
        None => None,
    };
    Ok(())
}

/// Which layers of Gemma 3 see a window: all but each sixth, unless the file says otherwise.
fn sliding_layers(keys: &Keys, windows: bool) -> Result<Vec<bool>> {
    let (name, layers) = (keys.name(PATTERN), keys.layers()?);
    let wrong = || keys.file.wrong(&name, "a number of layers, or a flag for each layer");
    if !windows {
        return Ok(vec![false; layers]);
    }
    let every = match keys.file.get(&name) {
        None => 6,
        Some(value) => match value.as_array() {
            Some(array) => {
                let flags: Option<Vec<bool>> = array.iter().map(|v| v.as_flag()).collect();
                return flags.filter(|flags| flags.len() == layers).ok_or_else(wrong);
            }
            None => value.as_size().filter(|every| *every > 0).ok_or_else(wrong)?,
        },
    };
    Ok((0..layers).map(|l| !(l + 1).is_multiple_of(every)).collect())
}
