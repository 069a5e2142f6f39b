//! What becomes of each tensor, and the headers of the new files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::{QuantizeOptions, QuantizeReport};
use crate::arch::Role;
use crate::error::{InferError, Result};
use crate::weights::{Checkpoint, Dtype, Tensor};

/// The files to write, and what is in them.
pub(super) struct Plan {
    pub files: Vec<PlannedFile>,
    uneven: Vec<String>,
}

/// A file of the checkpoint and its tensors, in the order in which they are written.
pub(super) struct PlannedFile {
    pub source: PathBuf,
    pub tensors: Vec<Planned>,
}

/// A tensor of the new file.
pub(super) struct Planned {
    pub tensor: Tensor,
    /// The type of its blocks where it becomes or already is blocks.
    pub blocks: Option<Dtype>,
    /// Whether its blocks lie along columns of the model's tensor.
    pub transposed: bool,
    /// Whether it becomes blocks now.
    pub quantised: bool,
    /// The shape whose rows are cut into blocks.
    pub shape: Vec<usize>,
    pub bytes: usize,
}

impl Plan {
    pub fn new(checkpoint: &Checkpoint, roles: &BTreeMap<String, Role>, options: &QuantizeOptions) -> Result<Self> {
        let mut uneven = Vec::new();
        let mut by_file: BTreeMap<&Path, Vec<Planned>> = BTreeMap::new();
        for name in checkpoint.names() {
            let tensor =
                checkpoint.get(name).ok_or_else(|| InferError::InvalidArgument(format!("`{name}` is gone")))?;
            let role = roles.get(name).copied().unwrap_or(Role::Values);
            let wanted = match role {
                Role::Linear | Role::LinearTransposed => true,
                Role::Table => options.embeddings,
                Role::Values => false,
            };
            let floats = matches!(tensor.dtype(), Ok(dtype) if !dtype.is_block());
            let mut planned = Planned::kept(tensor);
            if wanted && floats && !planned.quantise(options.dtype, role == Role::LinearTransposed) {
                uneven.push(name.to_string());
            }
            by_file.entry(tensor.file()).or_default().push(planned);
        }
        let files = by_file.into_iter().map(|(file, mut tensors)| {
            // Whole words first, so that each kind of element lies aligned; blocks last.
            tensors.sort_by(|a, b| b.alignment().cmp(&a.alignment()).then(a.tensor.name().cmp(b.tensor.name())));
            PlannedFile { source: file.to_path_buf(), tensors }
        });
        Ok(Self { files: files.collect(), uneven })
    }

    fn tensors(&self) -> impl Iterator<Item = &Planned> {
        self.files.iter().flat_map(|file| &file.tensors)
    }

    /// Bytes of the new tensors.
    pub fn bytes(&self) -> u64 {
        self.tensors().map(|t| t.bytes as u64).sum()
    }

    pub fn report(&self) -> QuantizeReport {
        let names = |quantised: bool| {
            let mut names: Vec<_> = self.tensors().filter(|t| t.quantised == quantised).map(Planned::name).collect();
            names.sort();
            names
        };
        QuantizeReport {
            quantised: names(true),
            kept: names(false),
            uneven: self.uneven.clone(),
            bytes_after: self.bytes(),
            ..QuantizeReport::default()
        }
    }
}

impl Planned {
    fn kept(tensor: &Tensor) -> Self {
        Self {
            tensor: tensor.clone(),
            blocks: tensor.dtype().ok().filter(|dtype| dtype.is_block()),
            transposed: tensor.is_transposed(),
            quantised: false,
            shape: tensor.shape().to_vec(),
            bytes: tensor.bytes().len(),
        }
    }

    /// Plans blocks of `dtype`, unless the rows are no whole number of them.
    fn quantise(&mut self, dtype: Dtype, transposed: bool) -> bool {
        let mut shape = self.shape.clone();
        if transposed {
            shape.reverse();
        }
        match dtype.bytes_of(&shape) {
            Some(bytes) if bytes > 0 && shape.len() == 2 => {
                *self =
                    Self { blocks: Some(dtype), transposed, quantised: true, shape, bytes, ..Self::kept(&self.tensor) };
                true
            }
            _ => false,
        }
    }

    fn name(&self) -> String {
        self.tensor.name().to_string()
    }

    /// Bytes of an element of the file.
    fn alignment(&self) -> usize {
        if self.blocks.is_some() { 1 } else { self.bytes / self.tensor.len().max(1) }
    }

    /// Type and shape as the header states them: blocks are bytes.
    fn stored(&self) -> (&str, Vec<usize>) {
        let Some(dtype) = self.blocks else { return (self.tensor.dtype_name(), self.shape.clone()) };
        let mut shape = self.shape.clone();
        if let Some(last) = shape.last_mut() {
            *last = *last / dtype.block_len() * dtype.size();
        }
        ("U8", shape)
    }
}

impl PlannedFile {
    /// The file up to its data: the header's length, the header, spaces up to a multiple of 8 bytes.
    pub fn header(&self) -> Result<Vec<u8>> {
        let mut entries = Vec::with_capacity(self.tensors.len() + 1);
        let mut blocks = BTreeMap::new();
        let mut start = 0;
        for planned in &self.tensors {
            let (dtype, shape) = planned.stored();
            let end = start + planned.bytes;
            let name = Value::from(planned.tensor.name());
            entries.push(format!(
                r#"{name}:{{"dtype":"{dtype}","shape":{},"data_offsets":[{start},{end}]}}"#,
                json!(shape)
            ));
            start = end;
            if let Some(dtype) = planned.blocks {
                let mut about = json!({"dtype": dtype.name(), "shape": planned.shape});
                if planned.transposed {
                    about["transposed"] = json!(true);
                }
                blocks.insert(planned.name(), about);
            }
        }
        if !blocks.is_empty() {
            let text = serde_json::to_string(&blocks).map_err(|e| InferError::model(&self.source, e.to_string()))?;
            let text = Value::from(text);
            entries.insert(0, format!(r#""__metadata__":{{"kin_infer.blocks":{text}}}"#));
        }
        let mut header = format!("{{{}}}", entries.join(",")).into_bytes();
        header.resize(header.len().next_multiple_of(8), b' ');
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header);
        Ok(bytes)
    }
}
