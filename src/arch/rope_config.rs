//! The rotation a decoder's configuration describes: `rope_theta` and `rope_scaling`, or the newer `rope_parameters`.
//!
//! Formulas: linear (arXiv 2306.15595), dynamic NTK (2309.00071, section 3.1), YaRN (2309.00071), LLaMA 3's smoothed
//! scaling and LongRoPE (2402.13753), as transformers' `modeling_rope_utils` computes them.

use serde_json::Value;

use super::keys::unsupported;
use super::rope::{LongFrequencies, LongerRope, RopeSpec, frequencies};
use crate::config::BertConfig;
use crate::error::Result;
use crate::gpu::RopeLayout;

/// What the reader of a family knows beside the keys.
pub(super) struct RopeKeys<'a> {
    /// Features of a head.
    pub head_dim: usize,
    /// Base where no key states one.
    pub default_theta: f64,
    /// Rotated part of a head where no key states one.
    pub default_partial: f64,
    /// `rope_parameters` of one kind of layers, where a model has several kinds.
    pub layer_type: Option<&'a str>,
}

/// One rotation's keys, wherever they stand.
struct Keys<'a> {
    name: &'static str,
    map: Option<&'a Value>,
}

impl Keys<'_> {
    fn number(&self, key: &str) -> Result<Option<f64>> {
        match self.map.and_then(|m| m.get(key)).filter(|v| !v.is_null()) {
            None => Ok(None),
            Some(v) => match v.as_f64().filter(|n| n.is_finite()) {
                Some(n) => Ok(Some(n)),
                None => Err(unsupported(&format!("{}.{key}", self.name), v, "a number")),
            },
        }
    }

    fn positive(&self, key: &str) -> Result<Option<f64>> {
        match self.number(key)? {
            Some(n) if n <= 0.0 => Err(unsupported(&format!("{}.{key}", self.name), n, "a positive number")),
            number => Ok(number),
        }
    }

    fn needed(&self, key: &str) -> Result<f64> {
        let absent = || unsupported(&format!("{}.{key}", self.name), "absent", "a positive number");
        self.positive(key)?.ok_or_else(absent)
    }

    fn list(&self, key: &str, len: usize) -> Result<Vec<f32>> {
        let list = self.map.and_then(|m| m.get(key)).and_then(Value::as_array);
        let numbers: Option<Vec<f32>> = list.and_then(|l| l.iter().map(|v| v.as_f64().map(|n| n as f32)).collect());
        numbers.filter(|n| n.len() == len && n.iter().all(|f| *f > 0.0)).ok_or_else(|| {
            let found = list.map_or("absent".to_string(), |l| format!("a list of {}", l.len()));
            unsupported(&format!("{}.{key}", self.name), found, &format!("a list of {len} positive numbers"))
        })
    }
}

/// The base of a rotation that nothing rescales, where `rope_parameters` (of one kind of layers) states it.
pub(super) fn unscaled_base(c: &BertConfig, kind: Option<&str>) -> Result<Option<f64>> {
    let object = |name: &str, value: Option<&'_ Value>| match value.filter(|v| !v.is_null()) {
        Some(other) if !other.is_object() => Err(unsupported(name, other, "an object")),
        found => Ok(found.cloned()),
    };
    let mut name = "rope_parameters".to_string();
    let mut map = object(&name, c.extra.get(&name))?;
    if let Some(kind) = kind {
        name += &format!(".{kind}");
        map = object(&name, map.as_ref().and_then(|m| m.get(kind)))?;
    }
    let get = |key: &str| map.as_ref().and_then(|m| m.get(key)).filter(|v| !v.is_null());
    for key in ["rope_type", "type"] {
        if let Some(other) = get(key).filter(|kind| *kind != "default") {
            return Err(unsupported(&format!("{name}.{key}"), other, "default"));
        }
    }
    let positive = |v: &Value| v.as_f64().filter(|base| base.is_finite() && *base > 0.0);
    let wrong = |v: &Value| unsupported(&format!("{name}.rope_theta"), v, "a positive number");
    get("rope_theta").map(|v| positive(v).ok_or_else(|| wrong(v))).transpose()
}

/// Reads a rotation.
pub(super) fn read(c: &BertConfig, k: &RopeKeys) -> Result<RopeSpec> {
    for key in ["rope_parameters", "rope_scaling"] {
        if let Some(other) = c.extra.get(key).filter(|v| !v.is_object()) {
            return Err(unsupported(key, other, "an object"));
        }
    }
    let parameters = c.extra.get("rope_parameters");
    let nested = k.layer_type.and_then(|kind| parameters.and_then(|p| p.get(kind)));
    let keys = match nested.or(parameters.filter(|p| k.layer_type.is_none() || p.get("rope_type").is_some())) {
        Some(map) => Keys { name: "rope_parameters", map: Some(map) },
        None => Keys { name: "rope_scaling", map: c.extra.get("rope_scaling") },
    };
    let theta = match keys.number("rope_theta")? {
        Some(theta) => theta,
        None => c.number("rope_theta", k.default_theta)?,
    };
    if !(theta.is_finite() && theta > 0.0) {
        return Err(unsupported("rope_theta", theta, "a positive number"));
    }
    let partial = match keys.number("partial_rotary_factor")? {
        Some(partial) => partial,
        None => c.number("partial_rotary_factor", k.default_partial)?,
    };
    let rotary_dim = (k.head_dim as f64 * partial) as usize;
    if !rotary_dim.is_multiple_of(2) || rotary_dim == 0 || rotary_dim > k.head_dim {
        let expected = format!("a factor that leaves an even number of a head's {} features", k.head_dim);
        return Err(unsupported("partial_rotary_factor", partial, &expected));
    }
    let mut rope = RopeSpec::plain(rotary_dim, RopeLayout::Halves, theta);
    scale(&mut rope, c, &keys)?;
    Ok(rope)
}

/// Applies the scaling that the keys name.
fn scale(rope: &mut RopeSpec, c: &BertConfig, keys: &Keys) -> Result<()> {
    let text = |key: &str| match keys.map.and_then(|m| m.get(key)).filter(|v| !v.is_null()) {
        Some(Value::String(kind)) => Ok(Some(kind.as_str())),
        Some(other) => Err(unsupported(&format!("{}.{key}", keys.name), other, "a text")),
        None => Ok(None),
    };
    let kind = text("rope_type")?.or(text("type")?).unwrap_or("default");
    match kind {
        "default" => {}
        "linear" => {
            let factor = keys.needed("factor")? as f32;
            rope.frequencies.iter_mut().for_each(|f| *f /= factor);
            rope.rescaled = format!("linear {factor}");
        }
        "dynamic" => {
            let (factor, trained) = (keys.needed("factor")?, c.max_position_embeddings);
            if factor < 1.0 || rope.rotary_dim < 4 {
                return Err(unsupported(&format!("{}.factor", keys.name), factor, "at least 1"));
            }
            rope.longer = Some(LongerRope { trained, frequencies: LongFrequencies::DynamicNtk { factor } });
        }
        // What GGUF files have in place of a formula.
        "factors" => {
            let factors = keys.list("factors", rope.rotary_dim / 2)?;
            rope.frequencies.iter_mut().zip(factors).for_each(|(f, factor)| *f /= factor);
            rope.rescaled = "divided by factors of the file".to_string();
        }
        "llama3" => llama3(rope, keys)?,
        "yarn" => yarn(rope, c, keys)?,
        "longrope" | "su" => longrope(rope, c, keys)?,
        other => {
            let known = "default, linear, dynamic, yarn, llama3, longrope";
            return Err(unsupported(&format!("{}.rope_type", keys.name), format!("\"{other}\""), known));
        }
    }
    Ok(())
}

fn llama3(rope: &mut RopeSpec, keys: &Keys) -> Result<()> {
    let factor = keys.needed("factor")?;
    let (low, high) = (keys.needed("low_freq_factor")?, keys.needed("high_freq_factor")?);
    let trained = keys.needed("original_max_position_embeddings")?;
    if high <= low {
        return Err(unsupported(&format!("{}.high_freq_factor", keys.name), high, "more than low_freq_factor"));
    }
    for f in &mut rope.frequencies {
        let wavelength = 2.0 * std::f64::consts::PI / f64::from(*f);
        if wavelength > trained / low {
            *f = (f64::from(*f) / factor) as f32;
        } else if wavelength >= trained / high {
            let smooth = (trained / wavelength - low) / (high - low);
            *f = ((1.0 - smooth) * f64::from(*f) / factor + smooth * f64::from(*f)) as f32;
        }
    }
    rope.rescaled = format!("LLaMA 3 scaling {factor} from {trained} tokens");
    Ok(())
}

fn yarn(rope: &mut RopeSpec, c: &BertConfig, keys: &Keys) -> Result<()> {
    let default_trained = c.max_position_embeddings as f64;
    let trained = match c.extra.get("original_max_position_embeddings").and_then(Value::as_f64) {
        Some(trained) => trained,
        None => keys.number("original_max_position_embeddings")?.unwrap_or(default_trained),
    };
    if !(trained.is_finite() && trained > 0.0) {
        return Err(unsupported("original_max_position_embeddings", trained, "a positive number"));
    }
    let factor = keys.positive("factor")?.unwrap_or(default_trained / trained);
    let grow = |scale: f64, m: f64| if scale <= 1.0 { 1.0 } else { 0.1 * m * libm::log(scale) + 1.0 };
    let scales = (keys.number("mscale")?.unwrap_or(0.0), keys.number("mscale_all_dim")?.unwrap_or(0.0));
    rope.amplitude = match (keys.number("attention_factor")?, scales) {
        (Some(own), _) => own,
        (None, (m, all)) if m != 0.0 && all != 0.0 => grow(factor, m) / grow(factor, all),
        (None, _) => grow(factor, 1.0),
    } as f32;
    let truncate = keys.map.and_then(|m| m.get("truncate")).and_then(Value::as_bool).unwrap_or(true);
    // 0 stands for an absent key, as in the reference.
    let beta = |key: &str, default: f64| match keys.number(key)? {
        Some(0.0) => Ok(default),
        _ => Ok(keys.positive(key)?.unwrap_or(default)),
    };
    let dim = rope.rotary_dim as f64;
    let turns = |rotations: f64| {
        let wave = trained / (rotations * 2.0 * std::f64::consts::PI);
        dim * libm::log(wave) / (2.0 * libm::log(rope.base))
    };
    let (low, high) = (turns(beta("beta_fast", 32.0)?), turns(beta("beta_slow", 1.0)?));
    let (low, high) = if truncate { (low.floor(), high.ceil()) } else { (low, high) };
    let (low, high) = (low.max(0.0) as f32, high.min(dim - 1.0) as f32);
    let high = if low == high { high + 0.001 } else { high };
    for (i, f) in rope.frequencies.iter_mut().enumerate() {
        let interpolated = (f64::from(*f) / factor) as f32;
        let kept = 1.0 - ((i as f32 - low) / (high - low)).clamp(0.0, 1.0);
        *f = interpolated * (1.0 - kept) + *f * kept;
    }
    rope.rescaled = format!("YaRN {factor} from {trained} tokens");
    Ok(())
}

fn longrope(rope: &mut RopeSpec, c: &BertConfig, keys: &Keys) -> Result<()> {
    let trained = match c.extra.get("original_max_position_embeddings") {
        Some(_) => c.size("original_max_position_embeddings", 0)? as f64,
        None => keys.number("original_max_position_embeddings")?.unwrap_or(c.max_position_embeddings as f64),
    };
    if trained < 2.0 {
        return Err(unsupported("original_max_position_embeddings", trained, "at least 2"));
    }
    let factor = keys.number("factor")?.unwrap_or(c.max_position_embeddings as f64 / trained);
    rope.amplitude = match keys.number("attention_factor")? {
        Some(own) => own as f32,
        None if factor <= 1.0 => 1.0,
        None => libm::sqrt(1.0 + libm::log(factor) / libm::log(trained)) as f32,
    };
    let pairs = rope.rotary_dim / 2;
    let powers: Vec<f32> = frequencies(rope.base, rope.rotary_dim).iter().map(|f| 1.0 / f).collect();
    let stretched = |factors: Vec<f32>| factors.iter().zip(&powers).map(|(f, p)| 1.0 / (f * p)).collect::<Vec<f32>>();
    rope.frequencies = stretched(keys.list("short_factor", pairs)?);
    let long = stretched(keys.list("long_factor", pairs)?);
    rope.longer = Some(LongerRope { trained: trained as usize, frequencies: LongFrequencies::Listed(long) });
    rope.rescaled = "LongRoPE".to_string();
    Ok(())
}
