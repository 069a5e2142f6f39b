//! A table of tensors under the names that GGUF files have for them.

use std::collections::HashMap;

use super::super::TensorTable;
use super::super::edit::Edit;
use super::super::table::{Name, Row};
use super::config::Keys;
use super::{Family, family_of};
use crate::error::{InferError, Result};
use crate::weights::{Checkpoint, GgufFile};

/// The tensor of the token embeddings.
const WORDS: &str = "token_embd.weight";

/// The table of a family, for the tensors of `file`, which are in `checkpoint`.
pub(in crate::arch) fn renamed(table: &TensorTable, checkpoint: &Checkpoint, file: &GgufFile) -> Result<TensorTable> {
    let family = family_of(file)?;
    let mut new = TensorTable::new(table.family, &[""], WORDS);
    new.ignore(&["*.attn_rot_embd.weight"]);
    if family.model_type == "t5" {
        new.ignore(&["dec.*", "output.weight"]);
    } else if !table.rows.iter().any(|row| row.internal.starts_with("head.")) {
        new.ignore(&["output.weight", "output.bias"]);
    }
    let keys = Keys::new(checkpoint, file, family);
    for row in &table.rows {
        new.rows.push(rename(row, family, &keys)?);
    }
    take_apart(&mut new, checkpoint);
    split_fused(&mut new, checkpoint);
    // The configuration holds their values, of the shape that the rotation asks for.
    for name in family.factors {
        if let Some(tensor) = checkpoint.get(name) {
            let shape = tensor.shape().to_vec();
            new.add(*name, *name, &shape);
        }
    }
    Ok(new)
}

/// The row under its name in the file. What the converter did to a tensor needs no edit; what it did besides is undone.
fn rename(row: &Row, family: &Family, keys: &Keys) -> Result<Row> {
    let (stem, kind) = row.internal.rsplit_once('.').unwrap_or((&row.internal, "weight"));
    let name = match stem.strip_prefix("layer.").and_then(|rest| rest.split_once('.')) {
        Some((layer, part)) => format!("{}{layer}.{}.{kind}", family.blocks, part_name(part, family)),
        None => global_name(&row.internal, stem, kind, family, keys),
    };
    let mut shape = row.shape.clone();
    let edit = match &row.edit {
        Edit::Transposed => {
            shape.reverse();
            Edit::None
        }
        Edit::PlusOne => Edit::None,
        other => other.clone(),
    };
    let edit = match permuted_heads(stem, keys, family)? {
        Some(heads) if shape[0].is_multiple_of(2 * heads) => Edit::HalvesApart { heads, rows: 0..shape[0] },
        // The configuration is another file's.
        Some(heads) => {
            return Err(InferError::TensorError {
                file: keys.file.path().to_path_buf(),
                tensor: name,
                expected: format!("{heads} heads of an even number of rows"),
                found: format!("a configuration that asks for {} rows", shape[0]),
            });
        }
        None => edit,
    };
    Ok(Row { internal: row.internal.clone(), names: vec![Name { text: name, prefixed: false }], shape, edit })
}

/// Heads of a projection whose rows the converter permutes.
fn permuted_heads(stem: &str, keys: &Keys, family: &Family) -> Result<Option<usize>> {
    match stem.strip_prefix("layer.").and_then(|rest| rest.split_once('.')) {
        Some((_, "q")) if family.architecture == "llama" => keys.heads().map(Some),
        Some((_, "k")) if family.architecture == "llama" => keys.kv_heads().map(Some),
        _ => Ok(None),
    }
}

/// The name of a part of a layer.
fn part_name<'a>(part: &'a str, family: &Family) -> &'a str {
    if let Some((_, name)) = family.norms.iter().find(|(ours, _)| *ours == part) {
        return name;
    }
    match part {
        "q" => "attn_q",
        "k" => "attn_k",
        "v" => "attn_v",
        "qkv" => "attn_qkv",
        "q_norm" => "attn_q_norm",
        "k_norm" => "attn_k_norm",
        "attn_out" if family.model_type == "t5" => "attn_o",
        "attn_out" => "attn_output",
        // Phi-3 has the gate and the other projection in one tensor.
        "ffn_gate" if family.model_type == "phi3" => "ffn_up",
        same => same,
    }
}

/// The name of a tensor that is in no layer.
fn global_name(internal: &str, stem: &str, kind: &str, family: &Family, keys: &Keys) -> String {
    let classifies = keys.has("cls.output.weight");
    let name = match stem {
        _ if internal == "embedding.word" => return WORDS.to_string(),
        _ if internal == "embedding.type" => return "token_types.weight".to_string(),
        _ if internal == "embedding.position" => return "position_embd.weight".to_string(),
        _ if internal == "buckets" => return "enc.blk.0.attn_rel_b.weight".to_string(),
        "embedding.norm" => "token_embd_norm",
        "final_norm" if family.model_type == "t5" => "enc.output_norm",
        "final_norm" => "output_norm",
        "head.dense" => "cls",
        "head.out" if classifies => "cls.output",
        "head.out" if kind == "weight" && !keys.has("output.weight") => return WORDS.to_string(),
        "head.out" => "output",
        other => other,
    };
    format!("{name}.{kind}")
}

/// Query, key and value projections as rows of one tensor, where the file has them so.
fn take_apart(table: &mut TensorTable, checkpoint: &Checkpoint) {
    let fused = |row: &Row| {
        let parts = [".attn_q.", ".attn_k.", ".attn_v."];
        let name = &row.names[0].text;
        let part = parts.iter().find(|part| row.internal.starts_with("layer.") && name.contains(*part))?;
        let fused = name.replacen(part, ".attn_qkv.", 1);
        (checkpoint.get(name).is_none() && checkpoint.get(&fused).is_some()).then_some(fused)
    };
    // Rows of each fused tensor up to the next part: queries, keys and values follow each other in the table too.
    let mut heights: HashMap<String, usize> = HashMap::new();
    let mut parts = Vec::new();
    for (index, row) in table.rows.iter().enumerate() {
        let Some(name) = fused(row) else { continue };
        let height = heights.entry(name.clone()).or_default();
        parts.push((index, name, *height));
        *height += row.shape[0];
    }
    for (index, name, start) in parts {
        let row = &mut table.rows[index];
        let rows = start..start + row.shape[0];
        row.edit = match row.edit {
            Edit::HalvesApart { heads, .. } => Edit::HalvesApart { heads, rows },
            _ => Edit::Rows(rows),
        };
        row.shape[0] = heights[&name];
        row.names[0].text = name;
    }
}

/// A fused projection as its three parts, where the file has them apart.
fn split_fused(table: &mut TensorTable, checkpoint: &Checkpoint) {
    let mut rows: Vec<Row> = Vec::with_capacity(table.rows.len());
    for row in table.rows.drain(..) {
        let apart = |part: &str| row.names[0].text.replacen(".attn_qkv.", &format!(".attn_{part}."), 1);
        let fused = row.internal.contains(".qkv.") && checkpoint.get(&row.names[0].text).is_none();
        let heights = ["q", "k", "v"].map(|part| checkpoint.get(&apart(part)).map(|t| t.shape().first().copied()));
        let [Some(Some(q)), Some(Some(k)), Some(Some(v))] = heights else {
            rows.push(row);
            continue;
        };
        if !fused || q.saturating_add(k).saturating_add(v) != row.shape[0] {
            rows.push(row);
            continue;
        }
        for (part, height) in [("q", q), ("k", k), ("v", v)] {
            let mut shape = row.shape.clone();
            shape[0] = height;
            let internal = row.internal.replacen(".qkv.", &format!(".{part}."), 1);
            let names = vec![Name { text: apart(part), prefixed: false }];
            rows.push(Row { internal, names, shape, edit: Edit::None });
        }
    }
    table.rows = rows;
}
