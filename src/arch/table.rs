//! Which tensors a model is made of: internal names, names in the file, shapes; and what remains of a checkpoint.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::edit::{Edit, Role};
use super::recognise::{alike, family_of};
use crate::error::{InferError, Result};
use crate::weights::{Checkpoint, Tensor};

/// The tensors of one model.
#[derive(Debug, Clone)]
pub struct TensorTable {
    /// The family whose names these are.
    pub(super) family: &'static str,
    /// What `model_type` calls it: some families have several.
    pub(super) model_type: &'static str,
    /// Prefixes under which the body's names may stand; the first that holds `anchor` counts.
    pub(super) prefixes: &'static [&'static str],
    /// A body tensor every checkpoint of the family has.
    pub(super) anchor: &'static str,
    pub(super) rows: Vec<Row>,
    /// Names (a `*` at either end stands for any text) that may be in the file and are not used. They are matched with and
    /// without the prefix.
    pub(super) ignored: Vec<&'static str>,
}

/// One required tensor.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub internal: String,
    /// Names in the file; the first that exists is taken.
    pub names: Vec<Name>,
    /// The shape in the file.
    pub shape: Vec<usize>,
    pub edit: Edit,
}

#[derive(Debug, Clone)]
pub(super) struct Name {
    pub text: String,
    /// Whether the name takes the body's prefix.
    pub prefixed: bool,
}

impl Row {
    /// What the model does with the tensor, as its loader goes by the internal name.
    fn role(&self) -> Role {
        match (&self.edit, self.shape.len()) {
            _ if ["embedding.word", "embedding.type", "embedding.position"].contains(&self.internal.as_str()) => {
                Role::Table
            }
            (Edit::None | Edit::Rows(_) | Edit::PartOfHeads { .. } | Edit::HalvesApart { .. }, 2)
                if self.internal.ends_with(".weight") =>
            {
                Role::Linear
            }
            (Edit::Transposed, 2) => Role::LinearTransposed,
            _ => Role::Values,
        }
    }

    /// How a tensor of the file becomes the row's; none where its shape is another.
    fn edit_of(&self, tensor: &Tensor) -> Option<Edit> {
        if tensor.is_transposed() {
            let turned = self.edit == Edit::Transposed && tensor.shape().iter().eq(self.shape.iter().rev());
            return turned.then_some(Edit::None);
        }
        (tensor.shape() == self.shape).then(|| self.edit.clone())
    }

    /// Another name the tensor may have, with the body's prefix.
    pub fn or(&mut self, name: impl Into<String>) -> &mut Self {
        self.names.push(Name { text: name.into(), prefixed: true });
        self
    }

    /// Another name the tensor may have, without a prefix.
    pub fn or_bare(&mut self, name: impl Into<String>) -> &mut Self {
        self.names.push(Name { text: name.into(), prefixed: false });
        self
    }

    /// The names so far stand outside the body: they take no prefix.
    pub fn bare(&mut self) -> &mut Self {
        self.make_bare();
        self
    }

    fn make_bare(&mut self) {
        self.names.iter_mut().for_each(|n| n.prefixed = false);
    }

    pub fn edit(&mut self, edit: Edit) -> &mut Self {
        self.edit = edit;
        self
    }
}

/// Whether a linear layer or norm has a bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bias {
    Yes,
    No,
}

impl From<bool> for Bias {
    fn from(yes: bool) -> Self {
        if yes { Self::Yes } else { Self::No }
    }
}

impl TensorTable {
    pub(super) fn new(family: &'static str, prefixes: &'static [&'static str], anchor: &'static str) -> Self {
        Self { family, model_type: family, prefixes, anchor, rows: Vec::new(), ignored: Vec::new() }
    }

    pub(super) fn add(&mut self, internal: impl Into<String>, name: impl Into<String>, shape: &[usize]) -> &mut Row {
        let name = name.into();
        // Checkpoints from before 2019 call a LayerNorm's parameters gamma and beta.
        let old = name.strip_suffix("LayerNorm.weight").map(|stem| format!("{stem}LayerNorm.gamma"));
        let old = old.or_else(|| name.strip_suffix("LayerNorm.bias").map(|stem| format!("{stem}LayerNorm.beta")));
        let names = std::iter::once(name).chain(old).map(|text| Name { text, prefixed: true }).collect();
        let row = Row { internal: internal.into(), names, shape: shape.to_vec(), edit: Edit::None };
        self.rows.push(row);
        let last = self.rows.len() - 1;
        &mut self.rows[last]
    }

    /// `internal.weight` [n, k] and, where there is one, `internal.bias` [n].
    pub(super) fn linear(&mut self, internal: &str, name: &str, (n, k): (usize, usize), bias: impl Into<Bias>) {
        self.add(format!("{internal}.weight"), format!("{name}.weight"), &[n, k]);
        if bias.into() == Bias::Yes {
            self.add(format!("{internal}.bias"), format!("{name}.bias"), &[n]);
        }
    }

    /// As [`linear`](Self::linear), for layers outside the body, whose names take no prefix.
    pub(super) fn bare_linear(&mut self, internal: &str, name: &str, shape: (usize, usize), bias: impl Into<Bias>) {
        let first = self.rows.len();
        self.linear(internal, name, shape, bias);
        self.rows[first..].iter_mut().for_each(Row::make_bare);
    }

    /// Rows `rows` of a fused linear layer [n, k].
    pub(super) fn part(
        &mut self,
        internal: &str,
        name: &str,
        (n, k): (usize, usize),
        rows: Range<usize>,
        bias: impl Into<Bias>,
    ) {
        self.add(format!("{internal}.weight"), format!("{name}.weight"), &[n, k]).edit(Edit::Rows(rows.clone()));
        if bias.into() == Bias::Yes {
            self.add(format!("{internal}.bias"), format!("{name}.bias"), &[n]).edit(Edit::Rows(rows));
        }
    }

    /// `internal.weight` and, where there is one, `internal.bias`, [n] each.
    pub(super) fn norm(&mut self, internal: &str, name: &str, n: usize, bias: impl Into<Bias>) {
        self.add(format!("{internal}.weight"), format!("{name}.weight"), &[n]);
        if bias.into() == Bias::Yes {
            self.add(format!("{internal}.bias"), format!("{name}.bias"), &[n]);
        }
    }

    /// As [`norm`](Self::norm), outside the body.
    pub(super) fn bare_norm(&mut self, internal: &str, name: &str, n: usize, bias: impl Into<Bias>) {
        let first = self.rows.len();
        self.norm(internal, name, n, bias);
        self.rows[first..].iter_mut().for_each(Row::make_bare);
    }

    /// Names that may be in the file and are not used.
    pub(super) fn ignore(&mut self, patterns: &[&'static str]) {
        self.ignored.extend(patterns);
    }

    /// Finds every tensor, checks its shape, and accounts for every name in the file.
    ///
    /// # Errors
    /// A tensor that is missing, has another shape, or that nobody asked for; or, where that is the reason, a checkpoint
    /// that holds another family's tensors.
    pub fn resolve(&self, checkpoint: &Checkpoint) -> Result<Tensors> {
        if let Some(file) = checkpoint.gguf() {
            return super::gguf::renamed(self, checkpoint, file)?.find(checkpoint);
        }
        self.find(checkpoint).map_err(|error| match family_of(checkpoint) {
            Some(other) if !alike(other, self.family) => InferError::ModelIncompatible {
                key: "model_type".to_string(),
                expected: format!("\"{other}\", whose tensors the checkpoint holds"),
                found: format!("\"{}\"", self.model_type),
            },
            _ => error,
        })
    }

    fn find(&self, checkpoint: &Checkpoint) -> Result<Tensors> {
        let holds = |prefix: &&&str| checkpoint.get(&format!("{prefix}{}", self.anchor)).is_some();
        let prefix = match self.prefixes.iter().find(holds) {
            Some(prefix) => prefix,
            None => {
                let anchor = self.rows.iter().find(|r| r.names.iter().any(|n| n.text == self.anchor));
                let name = format!("{}{}", self.prefixes[0], self.anchor);
                return Err(missing(checkpoint, &name, anchor.map_or(&[], |r| &r.shape)));
            }
        };
        let full = |n: &Name| if n.prefixed { format!("{prefix}{}", n.text) } else { n.text.clone() };
        let mut found = BTreeMap::new();
        let mut roles = BTreeMap::new();
        let (mut blocks, mut widened) = (BTreeSet::new(), BTreeSet::new());
        for row in &self.rows {
            let Some(tensor) = row.names.iter().find_map(|n| checkpoint.get(&full(n))) else {
                return Err(missing(checkpoint, &full(&row.names[0]), &row.shape));
            };
            let dtype = tensor.dtype()?;
            let Some(edit) = row.edit_of(tensor) else {
                let transposed = if tensor.is_transposed() { ", transposed" } else { "" };
                return Err(InferError::TensorError {
                    file: tensor.file().to_path_buf(),
                    tensor: tensor.name().to_string(),
                    expected: format!("shape {:?}", row.shape),
                    found: format!("shape {:?}{transposed}", tensor.shape()),
                });
            };
            let role = roles.entry(tensor.name().to_string()).or_insert(Role::Values);
            *role = row.role().max(*role);
            if matches!(row.role(), Role::Linear | Role::LinearTransposed) && dtype.is_block() {
                blocks.insert(tensor.name().to_string());
                if !dtype.is_computed() {
                    widened.insert(tensor.name().to_string());
                }
            }
            found.insert(row.internal.clone(), (tensor.clone(), edit));
        }
        let mut ignored = Vec::new();
        for name in checkpoint.names().filter(|n| !roles.contains_key(*n)) {
            if !self.ignores(name, prefix) {
                let file = checkpoint.get(name).map(|t| t.file().to_path_buf()).unwrap_or_default();
                let found = match checkpoint.gguf() {
                    Some(_) => "one that nothing in the metadata asks for; is `general.architecture` right?",
                    None => "one that nothing in config.json asks for; is `architectures` or `model_type` right?",
                };
                return Err(InferError::TensorError {
                    file,
                    tensor: name.to_string(),
                    expected: "only tensors this model uses".to_string(),
                    found: found.to_string(),
                });
            }
            ignored.push(name.to_string());
        }
        let report = LoadReport {
            used: roles.keys().cloned().collect(),
            ignored,
            widened: widened.into_iter().collect(),
            bytes: checkpoint.total_bytes(),
        };
        Ok(Tensors { found, roles, report, blocks, widens: false })
    }

    /// A tensor takes no other tensor's place.
    pub(super) fn untie(&mut self, internal: &str) {
        self.rows.iter_mut().filter(|row| row.internal == internal).for_each(|row| row.names.truncate(1));
    }

    fn ignores(&self, name: &str, prefix: &str) -> bool {
        let bare = name.strip_prefix(prefix).unwrap_or(name);
        self.ignored.iter().any(|pattern| match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
            (Some(end), _) => name.ends_with(end),
            (_, Some(stem)) => name.starts_with(stem) || bare.starts_with(stem),
            _ => name == *pattern || bare == *pattern,
        })
    }
}

fn missing(checkpoint: &Checkpoint, name: &str, shape: &[usize]) -> InferError {
    let some: Vec<_> = checkpoint.names().take(3).collect();
    InferError::TensorError {
        file: checkpoint.files().next().unwrap_or(std::path::Path::new("")).to_path_buf(),
        tensor: name.to_string(),
        expected: format!("shape {shape:?}"),
        found: format!("no such tensor; the checkpoint has {}, ...", some.join(", ")),
    }
}

/// What a load used of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadReport {
    /// Tensors the model computes with.
    pub used: Vec<String>,
    /// Tensors that are known to take no part.
    pub ignored: Vec<String>,
    /// Linear weights in blocks whose values are multiplied in f32, for their type is not multiplied as integers or f32 was
    /// asked for. The CPU keeps the blocks and widens them while it multiplies; other backends widen them when
    /// the model is loaded, and so do stacks of tensors of which several types share 16 rows.
    pub widened: Vec<String>,
    /// Bytes of all tensors in the files.
    pub bytes: u64,
}

/// The tensors of a model, by internal name.
pub struct Tensors {
    found: BTreeMap<String, (Tensor, Edit)>,
    /// What the model does with each tensor it uses, by its name in the file.
    pub roles: BTreeMap<String, Role>,
    /// What was used and ignored.
    pub report: LoadReport,
    /// Weights of linear layers that are in blocks.
    blocks: BTreeSet<String>,
    /// Whether those are widened.
    widens: bool,
}

impl Tensors {
    /// The tensor of an internal name of the table, as the model uses it.
    ///
    /// # Errors
    /// When the table has no such row: a contradiction between a family's spec and its table.
    pub fn get(&self, internal: &str) -> Result<Tensor> {
        match self.found.get(internal) {
            Some((tensor, edit)) => edit.apply(tensor),
            None => Err(InferError::InvalidArgument(format!("the tensor table has no row `{internal}`"))),
        }
    }

    /// As [`get`](Self::get), for the weight of a linear layer.
    pub(crate) fn linear(&self, internal: &str) -> Result<Tensor> {
        let tensor = self.get(internal)?;
        Ok(if self.widens { tensor.in_f32() } else { tensor })
    }

    /// From now on weights of linear layers that are in blocks are multiplied in f32.
    pub(crate) fn widen_blocks(&mut self) {
        self.widens = true;
        self.report.widened = self.blocks.iter().cloned().collect();
    }

    /// Whether the table has such a row.
    pub fn has(&self, internal: &str) -> bool {
        self.found.contains_key(internal)
    }
}
