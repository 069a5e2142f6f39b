//! Which tensors a model is made of: internal names, names in the file, shapes; and what remains of a checkpoint.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::{InferError, Result};
use crate::weights::{Checkpoint, Tensor};

/// The tensors of one model.
#[derive(Debug, Clone)]
pub struct TensorTable {
    /// Prefixes under which the body's names may stand; the first that holds `anchor` counts.
    pub(super) prefixes: &'static [&'static str],
    /// A body tensor every checkpoint of the family has.
    pub(super) anchor: &'static str,
    pub(super) rows: Vec<Row>,
    /// Names (a trailing `*` stands for any rest) that may be in the file and are not used. They are matched with and
    /// without the prefix.
    pub(super) ignored: Vec<&'static str>,
}

/// One required tensor.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub internal: String,
    /// Names in the file, without prefix; the first that exists is taken.
    pub names: Vec<String>,
    pub shape: Vec<usize>,
    /// Whether the name takes the body's prefix.
    pub prefixed: bool,
}

impl TensorTable {
    pub(super) fn add(&mut self, internal: impl Into<String>, name: &str, shape: &[usize]) {
        // Checkpoints from before 2019 call a LayerNorm's parameters gamma and beta.
        let old = name.strip_suffix("LayerNorm.weight").map(|stem| format!("{stem}LayerNorm.gamma"));
        let old = old.or_else(|| name.strip_suffix("LayerNorm.bias").map(|stem| format!("{stem}LayerNorm.beta")));
        let names = std::iter::once(name.to_string()).chain(old).collect();
        self.rows.push(Row { internal: internal.into(), names, shape: shape.to_vec(), prefixed: true });
    }

    /// `internal.weight` [n, k] and `internal.bias` [n].
    pub(super) fn add_linear(&mut self, internal: &str, name: &str, n: usize, k: usize) {
        self.add(format!("{internal}.weight"), &format!("{name}.weight"), &[n, k]);
        self.add(format!("{internal}.bias"), &format!("{name}.bias"), &[n]);
    }

    /// `internal.weight` and `internal.bias`, [n] each.
    pub(super) fn add_norm(&mut self, internal: &str, name: &str, n: usize) {
        self.add(format!("{internal}.weight"), &format!("{name}.weight"), &[n]);
        self.add(format!("{internal}.bias"), &format!("{name}.bias"), &[n]);
    }

    /// The rows added last, `count` of them, stand outside the body: their names take no prefix.
    pub(super) fn last_without_prefix(&mut self, count: usize) {
        let first = self.rows.len() - count;
        self.rows[first..].iter_mut().for_each(|r| r.prefixed = false);
    }

    /// Finds every tensor, checks its shape, and accounts for every name in the file.
    ///
    /// # Errors
    /// A tensor that is missing, has another shape, or that nobody asked for.
    pub fn resolve(&self, checkpoint: &Checkpoint) -> Result<Tensors> {
        let holds = |prefix: &&&str| checkpoint.get(&format!("{prefix}{}", self.anchor)).is_some();
        let prefix = *self.prefixes.iter().find(holds).unwrap_or(&self.prefixes[0]);
        let mut found = BTreeMap::new();
        let mut used = BTreeSet::new();
        for row in &self.rows {
            let full = |name: &String| if row.prefixed { format!("{prefix}{name}") } else { name.clone() };
            let tensor = row.names.iter().find_map(|n| checkpoint.get(&full(n)));
            let Some(tensor) = tensor else {
                return Err(self.missing(checkpoint, &full(&row.names[0]), &row.shape));
            };
            tensor.dtype()?;
            if tensor.shape() != row.shape {
                return Err(InferError::TensorError {
                    file: tensor.file().to_path_buf(),
                    tensor: tensor.name().to_string(),
                    expected: format!("shape {:?}", row.shape),
                    found: format!("shape {:?}", tensor.shape()),
                });
            }
            used.insert(tensor.name().to_string());
            found.insert(row.internal.clone(), tensor.clone());
        }
        let mut ignored = Vec::new();
        for name in checkpoint.names().filter(|n| !used.contains(*n)) {
            if !self.ignores(name, prefix) {
                let file = checkpoint.get(name).map(|t| t.file().to_path_buf()).unwrap_or_default();
                return Err(InferError::TensorError {
                    file,
                    tensor: name.to_string(),
                    expected: "only tensors this model uses".to_string(),
                    found: "one that nothing in config.json asks for; is `architectures` or `model_type` right?".into(),
                });
            }
            ignored.push(name.to_string());
        }
        let used = used.into_iter().collect();
        Ok(Tensors { found, report: LoadReport { used, ignored, bytes: checkpoint.total_bytes() } })
    }

    fn missing(&self, checkpoint: &Checkpoint, name: &str, shape: &[usize]) -> InferError {
        let some: Vec<_> = checkpoint.names().take(3).collect();
        InferError::TensorError {
            file: checkpoint.files().next().unwrap_or(std::path::Path::new("")).to_path_buf(),
            tensor: name.to_string(),
            expected: format!("shape {shape:?}"),
            found: format!("no such tensor; the checkpoint has {}, ...", some.join(", ")),
        }
    }

    fn ignores(&self, name: &str, prefix: &str) -> bool {
        let bare = name.strip_prefix(prefix).unwrap_or(name);
        self.ignored.iter().any(|pattern| match pattern.strip_suffix('*') {
            Some(stem) => name.starts_with(stem) || bare.starts_with(stem),
            None => name == *pattern || bare == *pattern,
        })
    }
}

/// What a load used of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadReport {
    /// Tensors the model computes with.
    pub used: Vec<String>,
    /// Tensors that are known to take no part.
    pub ignored: Vec<String>,
    /// Bytes of all tensors in the files.
    pub bytes: u64,
}

/// The tensors of a model, by internal name.
pub struct Tensors {
    found: BTreeMap<String, Tensor>,
    /// What was used and ignored.
    pub report: LoadReport,
}

impl Tensors {
    /// The tensor of an internal name of the table.
    ///
    /// # Errors
    /// When the table has no such row: a contradiction between a family's spec and its table.
    pub fn get(&self, internal: &str) -> Result<&Tensor> {
        self.found
            .get(internal)
            .ok_or_else(|| InferError::InvalidArgument(format!("the tensor table has no row `{internal}`")))
    }
}
