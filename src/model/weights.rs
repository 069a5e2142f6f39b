//! A model's weights on a backend, built from the tensor table's internal names.

use crate::arch::{HeadSpec, ModelSpec, PositionSpec, Tensors};
use crate::error::{InferError, Result};
use crate::gpu::{Activation, Buffer, Epilogue, GpuCompute, PoolingMode, Segments, Table, Weight};

pub(super) struct Weights {
    pub word: Table,
    pub token_type: Table,
    /// Learned positions.
    pub position: Option<Table>,
    /// ALiBi: the slope of each head.
    pub slopes: Option<Buffer>,
    pub norm: Norm,
    pub layers: Vec<Layer>,
    pub classifier: Option<Classifier>,
    /// Bytes of the prepared matrices.
    pub bytes: usize,
}

pub(super) struct Layer {
    /// Query, key and value stacked: [3 hidden, hidden].
    pub qkv: Linear,
    pub attn_out: Linear,
    pub attn_norm: Norm,
    pub ffn_up: Linear,
    pub ffn_down: Linear,
    pub ffn_norm: Norm,
}

pub(super) struct Linear {
    pub weight: Weight,
    pub bias: Buffer,
}

pub(super) struct Norm {
    pub gamma: Buffer,
    pub beta: Buffer,
}

pub(super) struct Classifier {
    pooler: Linear,
    output: Linear,
}

struct Loader<'a> {
    tensors: &'a Tensors,
    compute: &'a dyn GpuCompute,
    bytes: usize,
}

impl Loader<'_> {
    fn vector(&self, names: &[String]) -> Result<Buffer> {
        let mut values = Vec::new();
        for name in names {
            let tensor = self.tensors.get(name)?;
            if let Some(at) = tensor.first_non_finite()? {
                return Err(InferError::TensorError {
                    file: tensor.file().to_path_buf(),
                    tensor: tensor.name().to_string(),
                    expected: "finite values".to_string(),
                    found: format!("NaN or an infinity at [{at}]"),
                });
            }
            values.extend(tensor.to_f32()?);
        }
        self.compute.upload(&values)
    }

    /// The linear layers of these internal names, stacked.
    fn linear(&mut self, names: &[String]) -> Result<Linear> {
        let tensor = |n: &String| self.tensors.get(&format!("{n}.weight")).cloned();
        let parts = names.iter().map(tensor).collect::<Result<Vec<_>>>()?;
        let weight = self.compute.prepare_weight(&parts)?;
        let biases: Vec<_> = names.iter().map(|n| format!("{n}.bias")).collect();
        self.bytes += weight.bytes();
        Ok(Linear { weight, bias: self.vector(&biases)? })
    }

    fn norm(&self, name: &str) -> Result<Norm> {
        Ok(Norm { gamma: self.vector(&[format!("{name}.weight")])?, beta: self.vector(&[format!("{name}.bias")])? })
    }

    fn table(&self, name: &str) -> Result<Table> {
        self.compute.prepare_table(self.tensors.get(name)?)
    }

    fn layer(&mut self, index: usize) -> Result<Layer> {
        let name = |part: &str| format!("layer.{index}.{part}");
        Ok(Layer {
            qkv: self.linear(&[name("q"), name("k"), name("v")])?,
            attn_out: self.linear(&[name("attn_out")])?,
            attn_norm: self.norm(&name("attn_norm"))?,
            ffn_up: self.linear(&[name("ffn_up")])?,
            ffn_down: self.linear(&[name("ffn_down")])?,
            ffn_norm: self.norm(&name("ffn_norm"))?,
        })
    }
}

impl Weights {
    pub fn load(spec: &ModelSpec, tensors: &Tensors, compute: &dyn GpuCompute) -> Result<Self> {
        let mut loader = Loader { tensors, compute, bytes: 0 };
        let learned = spec.embedding.positions == PositionSpec::Learned;
        let slopes = if learned { None } else { Some(compute.upload(&alibi_slopes(spec.attention.heads))?) };
        let layers = (0..spec.layers).map(|l| loader.layer(l)).collect::<Result<_>>()?;
        let classifier = match spec.head {
            HeadSpec::None => None,
            HeadSpec::Classifier { .. } => Some(Classifier {
                pooler: loader.linear(&["pooler".to_string()])?,
                output: loader.linear(&["classifier".to_string()])?,
            }),
        };
        Ok(Self {
            word: loader.table("embedding.word")?,
            token_type: loader.table("embedding.type")?,
            position: if learned { Some(loader.table("embedding.position")?) } else { None },
            slopes,
            norm: loader.norm("embedding.norm")?,
            layers,
            classifier,
            bytes: loader.bytes,
        })
    }

    /// The classification head: first token, dense with tanh, linear. [sequences, labels].
    pub fn classify(
        &self,
        compute: &dyn GpuCompute,
        spec: &ModelSpec,
        hidden: &Buffer,
        segments: &Segments,
    ) -> Result<Buffer> {
        let Some(head) = &self.classifier else {
            return Err(InferError::InvalidArgument("this model has no classification head".to_string()));
        };
        let (rows, width) = (segments.len(), spec.hidden_size);
        let mut first = compute.alloc(rows * width)?;
        compute.pool(hidden, width, segments, 0, PoolingMode::Cls, (&mut first, 0, width))?;
        let mut pooled = compute.alloc(rows * width)?;
        let tanh = Epilogue { bias: Some(&head.pooler.bias), activation: Activation::Tanh, residual: None };
        compute.matmul(&first, rows, &head.pooler.weight, tanh, &mut pooled)?;
        let mut scores = compute.alloc(rows * head.output.weight.n())?;
        let plain = Epilogue { bias: Some(&head.output.bias), ..Epilogue::NONE };
        compute.matmul(&pooled, rows, &head.output.weight, plain, &mut scores)?;
        Ok(scores)
    }
}

/// Slopes of ALiBi for any number of heads: 2^(-8 (h + 1) / n) for a power of two n; else those of the largest power
/// of two n' below it, then every other slope of 2 n'.
fn alibi_slopes(heads: usize) -> Vec<f32> {
    let whole = 1usize << heads.ilog2();
    let slope = |h: usize, n: usize| libm::exp2(-8.0 * (h + 1) as f64 / n as f64) as f32;
    let first = (0..whole).map(|h| slope(h, whole));
    first.chain((0..heads - whole).map(|h| slope(2 * h, 2 * whole))).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn alibi_slopes_follow_the_papers_rule() {
        assert_eq!(super::alibi_slopes(4), [0.25, 0.0625, 0.015625, 0.00390625]);
        assert_eq!(super::alibi_slopes(6), [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125]);
        assert_eq!(super::alibi_slopes(1), [0.00390625]);
    }
}
