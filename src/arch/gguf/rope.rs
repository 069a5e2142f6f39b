//! Rotary positions: keys of the metadata, and the tensors that hold factors of frequencies.

use serde_json::{Map, Value, json};

use super::config::Keys;
use super::{Family, Rotation};
use crate::error::{InferError, Result};

/// Factors of the frequencies of sequences up to the trained length, and of longer ones.
pub(super) const SHORT: &str = "rope_factors_short.weight";
pub(super) const LONG: &str = "rope_factors_long.weight";

/// Factors of all frequencies, and the others.
pub(super) const FACTORS: [&str; 3] = ["rope_freqs.weight", SHORT, LONG];

const TYPE: &str = "rope.scaling.type";
const AMPLITUDE: &str = "rope.scaling.attn_factor";
const TRAINED: &str = "rope.scaling.original_context_length";

/// The stretch, under its name and the one it had before.
const STRETCH: [&str; 2] = ["rope.scaling.factor", "rope.scale_linear"];

/// YaRN's borders, in turns over the trained length.
const BETAS: [&str; 2] = ["rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow"];

/// YaRN's other keys, with the values that are computed. llama.cpp reads the last in few families, and transformers means
/// another factor by it: no value of it is certain.
const FIXED: [(&str, &[f64]); 3] = [
    ("rope.scaling.yarn_ext_factor", &[1.0]),
    ("rope.scaling.yarn_log_multiplier", &[0.0]),
    ("rope.scaling.yarn_attn_factor", &[]),
];

/// Sets the keys of a decoder's rotation, of heads with `dim` features.
pub(super) fn keys(keys: &Keys, family: &Family, dim: usize, map: &mut Map<String, Value>) -> Result<()> {
    map.insert("rope_theta".into(), json!(keys.positive("rope.freq_base")?.unwrap_or(10_000.0)));
    let rotated = rotated(keys, family, dim)?;
    // Rounded down to the number itself.
    let part = if rotated == dim { 1.0 } else { (rotated as f64 + 0.25) / dim as f64 };
    map.insert("partial_rotary_factor".into(), json!(part));
    let trained = trained(keys)?;
    if let Some(scaling) = scaling(keys, family, rotated / 2, trained)? {
        map.insert("rope_scaling".into(), scaling);
    }
    if let Some(trained) = trained {
        map.insert("original_max_position_embeddings".into(), json!(trained));
    }
    Ok(())
}

/// How many features of a head are rotated: an even number, all of them except in families that rotate a part.
pub(super) fn rotated(keys: &Keys, family: &Family, dim: usize) -> Result<usize> {
    let key = "rope.dimension_count";
    let rotated = keys.size(key)?;
    match rotated {
        Some(n) if family.rotation == Rotation::Part && n > 0 && n <= dim && n.is_multiple_of(2) => Ok(n),
        Some(_) if family.rotation == Rotation::Part => {
            Err(keys.file.wrong(&keys.name(key), &format!("an even number up to {dim}, the features of a head")))
        }
        Some(n) if n != dim => Err(keys.file.wrong(&keys.name(key), &format!("{dim}, all features of a head"))),
        _ if dim == 0 || !dim.is_multiple_of(2) => {
            let given = ["rope.dimension_count", "attention.key_length"].into_iter().find(|key| keys.stands(key));
            let key = keys.name(given.unwrap_or("embedding_length"));
            Err(keys.file.wrong(&key, &format!("an even number of features a head, which has {dim}")))
        }
        _ => Ok(dim),
    }
}

/// The longest sequence that needs no scaling.
fn trained(keys: &Keys) -> Result<Option<usize>> {
    match keys.size(TRAINED)? {
        Some(0) => Err(keys.file.wrong(&keys.name(TRAINED), "at least 1")),
        trained => Ok(trained),
    }
}

/// What `rope_scaling` of a config.json says, of `pairs` rotated pairs.
fn scaling(keys: &Keys, family: &Family, pairs: usize, trained: Option<usize>) -> Result<Option<Value>> {
    let find = |name: &&str| family.factors.contains(name) && keys.has(name);
    let [all, short, long] = FACTORS.map(|name| Some(name).filter(find));
    let kind = keys.file.text(&keys.name(TYPE))?;
    match (all, short, long) {
        (None, None, None) => {}
        (Some(all), None, None) => {
            refuse_scaling(keys)?;
            return Ok(Some(json!({"rope_type": "factors", "factors": factors(keys, all, pairs)?})));
        }
        (None, Some(short), Some(long)) => {
            if kind.is_some_and(|kind| kind != "longrope") {
                return Err(keys.file.wrong(&keys.name(TYPE), "longrope, or none, beside factors of long sequences"));
            }
            STRETCH.into_iter().try_for_each(|key| keys.refuse_but(key, &[0.0, 1.0]))?;
            refuse_yarn(keys)?;
            let amplitude = keys.positive(AMPLITUDE)?;
            let amplitude = amplitude.ok_or_else(|| keys.file.wrong(&keys.name(AMPLITUDE), "a positive number"))?;
            let (short, long) = (factors(keys, short, pairs)?, factors(keys, long, pairs)?);
            return Ok(Some(json!({
                "rope_type": "longrope", "short_factor": short, "long_factor": long, "attention_factor": amplitude,
            })));
        }
        (Some(name), ..) => return Err(contradiction(keys, name, "no factors of all frequencies beside these")),
        (None, Some(_), None) => return Err(contradiction(keys, LONG, "factors of long sequences, as of short ones")),
        (None, None, Some(_)) => return Err(contradiction(keys, SHORT, "factors of short sequences, as of long ones")),
    }
    keys.refuse_but(AMPLITUDE, &[1.0])?;
    if kind == Some("yarn") { yarn(keys, trained).map(Some) } else { linear(keys, kind) }
}

/// Without a type, a stretch is linear.
fn linear(keys: &Keys, kind: Option<&str>) -> Result<Option<Value>> {
    refuse_yarn(keys)?;
    match kind {
        Some("none") => refuse_scaling(keys).map(|()| None),
        None | Some("linear") => {
            let factor = stretch(keys)?;
            Ok(factor.map(|factor| json!({"rope_type": "linear", "factor": factor})))
        }
        Some(_) => {
            let expected = "none, linear or yarn; or longrope, with its tensors of factors";
            Err(keys.file.wrong(&keys.name(TYPE), expected))
        }
    }
}

fn yarn(keys: &Keys, trained: Option<usize>) -> Result<Value> {
    let needed = || keys.file.wrong(&keys.name(STRETCH[0]), "a positive number other than 1, for YaRN");
    let factor = stretch(keys)?.ok_or_else(needed)?;
    FIXED.into_iter().try_for_each(|(key, values)| keys.refuse_but(key, values))?;
    let [fast, slow] = BETAS.map(|key| keys.positive(key));
    Ok(json!({
        "rope_type": "yarn", "factor": factor, "original_max_position_embeddings": trained,
        "beta_fast": fast?, "beta_slow": slow?,
    }))
}

/// The stretch, if there is one: 0 and 1 are none.
fn stretch(keys: &Keys) -> Result<Option<f64>> {
    let [new, old] = STRETCH;
    let read = |key: &str| match keys.number(key)? {
        Some(0.0) => Ok(None),
        _ => keys.positive(key),
    };
    let (stretch, before) = (read(new)?, read(old)?);
    if let (Some(stretch), Some(before)) = (stretch, before)
        && stretch != before
    {
        return Err(keys.file.wrong(&keys.name(old), &format!("none, or {stretch}, as `{}` says", keys.name(new))));
    }
    Ok(stretch.or(before).filter(|stretch| *stretch != 1.0))
}

/// Refuses any scaling.
pub(super) fn refuse_scaling(keys: &Keys) -> Result<()> {
    let name = keys.name(TYPE);
    if keys.file.text(&name)?.is_some_and(|kind| kind != "none") {
        return Err(keys.file.wrong(&name, "none"));
    }
    STRETCH.into_iter().try_for_each(|key| keys.refuse_but(key, &[0.0, 1.0]))?;
    keys.refuse_but(AMPLITUDE, &[1.0])?;
    refuse_yarn(keys)
}

/// Refuses YaRN's keys, where it is not asked for.
fn refuse_yarn(keys: &Keys) -> Result<()> {
    match BETAS.into_iter().chain(FIXED.map(|(key, _)| key)).find(|key| keys.stands(key)) {
        Some(key) => Err(keys.file.wrong(&keys.name(key), "none, for the scaling is not YaRN")),
        None => Ok(()),
    }
}

/// The values of a tensor of factors, one for each pair.
fn factors(keys: &Keys, name: &str, pairs: usize) -> Result<Vec<f32>> {
    let tensor = keys.checkpoint.tensor(name)?;
    if tensor.shape() != [pairs] {
        return Err(contradiction(keys, name, &format!("shape [{pairs}]")));
    }
    let factors = tensor.to_finite_f32()?;
    if factors.iter().all(|factor| *factor > 0.0) {
        Ok(factors)
    } else {
        Err(contradiction(keys, name, "positive values"))
    }
}

fn contradiction(keys: &Keys, name: &str, expected: &str) -> InferError {
    let tensor = keys.checkpoint.get(name);
    InferError::TensorError {
        file: keys.file.path().to_path_buf(),
        tensor: name.to_string(),
        expected: expected.to_string(),
        found: tensor.map_or("no such tensor".to_string(), |t| format!("others of shape {:?}", t.shape())),
    }
}
