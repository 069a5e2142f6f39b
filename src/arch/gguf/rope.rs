//! Rotary positions: keys of the metadata, and the tensors that hold factors of frequencies.

use serde_json::{Map, Value, json};

use super::config::Keys;
use crate::error::{InferError, Result};

/// Factors of all frequencies, and of those of short and of long sequences.
pub(super) const FACTORS: [&str; 3] = ["rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight"];

/// Sets the keys of a decoder's rotation, of heads with `dim` features.
pub(super) fn keys(keys: &Keys, dim: usize, map: &mut Map<String, Value>) -> Result<()> {
    map.insert("rope_theta".into(), json!(keys.number("rope.freq_base")?.unwrap_or(10_000.0)));
    if let Some(rotated) = keys.size("rope.dimension_count")?.filter(|rotated| *rotated != dim) {
        // Rounded down to the number itself.
        map.insert("partial_rotary_factor".into(), json!((rotated as f64 + 0.25) / dim.max(1) as f64));
    } else {
        map.insert("partial_rotary_factor".into(), json!(1.0));
    }
    let trained = keys.size("rope.scaling.original_context_length")?;
    if let Some(scaling) = scaling(keys, trained)? {
        map.insert("rope_scaling".into(), scaling);
    }
    if let Some(trained) = trained {
        map.insert("original_max_position_embeddings".into(), json!(trained));
    }
    Ok(())
}

/// What `rope_scaling` of a config.json says.
fn scaling(keys: &Keys, trained: Option<usize>) -> Result<Option<Value>> {
    let [all, short, long] = FACTORS.map(|name| factors(keys, name));
    let amplitude = keys.number("rope.scaling.attn_factor")?;
    if let (Some(short), Some(long)) = (short?, long?) {
        // The reference's own formula gives the factor where the file has none.
        return Ok(Some(json!({
            "rope_type": "longrope", "short_factor": short, "long_factor": long, "attention_factor": amplitude,
        })));
    }
    if let Some(factors) = all? {
        refuse_scaling(keys)?;
        return Ok(Some(json!({"rope_type": "factors", "factors": factors})));
    }
    let name = keys.name("rope.scaling.type");
    let factor = match keys.number("rope.scaling.factor")? {
        Some(factor) => Some(factor),
        None => keys.number("rope.scale_linear")?,
    };
    let kind = keys.file.text(&name)?.unwrap_or(if factor.is_some() { "linear" } else { "none" });
    if amplitude.is_some_and(|a| a != 1.0) {
        return Err(keys
            .file
            .wrong(&keys.name("rope.scaling.attn_factor"), "1, or factors of long sequences beside it"));
    }
    match kind {
        "none" => Ok(None),
        "linear" if factor.is_none_or(|f| f == 1.0 || f == 0.0) => Ok(None),
        "linear" => Ok(Some(json!({"rope_type": "linear", "factor": factor}))),
        "yarn" => {
            for key in ["rope.scaling.yarn_log_multiplier", "rope.scaling.yarn_attn_factor", "rope.scaling.alpha"] {
                if keys.file.get(&keys.name(key)).is_some() {
                    return Err(keys.file.wrong(&keys.name(key), "none"));
                }
            }
            Ok(Some(json!({
                "rope_type": "yarn", "factor": factor, "original_max_position_embeddings": trained,
                "beta_fast": keys.number("rope.scaling.yarn_beta_fast")?,
                "beta_slow": keys.number("rope.scaling.yarn_beta_slow")?,
            })))
        }
        _ => Err(keys.file.wrong(&name, "none, linear or yarn; or longrope, with its tensors of factors")),
    }
}

/// Refuses any scaling.
pub(super) fn refuse_scaling(keys: &Keys) -> Result<()> {
    let name = keys.name("rope.scaling.type");
    match keys.file.text(&name)? {
        None | Some("none") => Ok(()),
        Some(_) => Err(keys.file.wrong(&name, "none")),
    }
}

/// The values of a tensor of factors, if there is one.
fn factors(keys: &Keys, name: &str) -> Result<Option<Vec<f32>>> {
    let Some(tensor) = keys.checkpoint.get(name) else { return Ok(None) };
    match tensor.first_non_finite()? {
        None => tensor.to_f32().map(Some),
        Some(at) => Err(InferError::TensorError {
            file: tensor.file().to_path_buf(),
            tensor: name.to_string(),
            expected: "finite values".to_string(),
            found: format!("NaN or an infinity at [{at}]"),
        }),
    }
}
