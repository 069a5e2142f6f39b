//! A model's weights on a backend, built from the tensor table's internal names.

use super::head::Head;
use super::positions::Positions;
use crate::arch::{ModelSpec, ScorePositions, Tensors};
use crate::error::{InferError, Result};
use crate::gpu::{Activation, Buffer, Epilogue, GpuCompute, Norm, NormKind, Precision, Table, Weight};
use crate::weights::Tensor;

pub(super) struct Weights {
    pub word: Table,
    pub token_type: Option<Table>,
    /// Learned positions.
    pub position: Option<Table>,
    pub embedding_norm: Option<NormWeights>,
    pub embedding_projection: Option<Linear>,
    /// What distances do to scores.
    pub positions: Positions,
    /// The stored layers.
    pub layers: Vec<Layer>,
    pub convolution: Option<Convolution>,
    pub final_norm: Option<NormWeights>,
    pub head: Option<Head>,
    /// Bytes of the prepared matrices.
    pub bytes: usize,
}

pub(super) struct Layer {
    /// Query, key and value stacked: [(heads + 2 kv_heads) head_dim, hidden].
    pub qkv: Linear,
    pub q_norm: Option<NormWeights>,
    pub k_norm: Option<NormWeights>,
    /// DeBERTa: the relative embedding through the layer's projections, [2 span, heads * head_dim] each.
    pub position_keys: Option<Buffer>,
    pub position_queries: Option<Buffer>,
    pub attn_out: Linear,
    /// JinaBERT's second generation: a norm of attention and its input, before the input is added once more.
    pub attn_inner_norm: Option<NormWeights>,
    /// Before attention or after it, as the spec says; none in ModernBERT's first layer.
    pub attn_norm: Option<NormWeights>,
    /// Of attention's output, before the residual.
    pub attn_out_norm: Option<NormWeights>,
    pub ffn_gate: Option<Linear>,
    pub ffn_up: Linear,
    pub ffn_down: Linear,
    /// Before the feed-forward block or after it; none where the attention's serves both.
    pub ffn_norm: Option<NormWeights>,
    /// Of the feed-forward block's output, before the residual.
    pub ffn_out_norm: Option<NormWeights>,
}

/// DeBERTa-v2's convolution over unfolded rows, and the norm after it.
pub(super) struct Convolution {
    pub kernel: Linear,
    pub norm: NormWeights,
}

pub(super) struct Linear {
    pub weight: Weight,
    pub bias: Option<Buffer>,
}

impl Linear {
    /// `out = act(x W^T + bias)` of `rows` rows.
    pub fn run(&self, compute: &dyn GpuCompute, x: &Buffer, rows: usize, activation: Activation) -> Result<Buffer> {
        let mut out = compute.alloc(rows * self.weight.n())?;
        let epilogue = Epilogue { bias: self.bias.as_ref(), activation, ..Epilogue::NONE };
        compute.matmul(x, rows, &self.weight, epilogue, &mut out)?;
        Ok(out)
    }
}

pub(super) struct NormWeights {
    kind: NormKind,
    eps: f32,
    gamma: Buffer,
    beta: Option<Buffer>,
}

impl NormWeights {
    pub fn norm(&self) -> Norm<'_> {
        Norm { kind: self.kind, gamma: &self.gamma, beta: self.beta.as_ref(), eps: self.eps }
    }
}

/// Loads by internal name. What the table has no row for, the model does without.
pub(super) struct Loader<'a> {
    pub tensors: &'a Tensors,
    pub compute: &'a dyn GpuCompute,
    pub spec: &'a ModelSpec,
    /// Of the linear layers inside the model's layers.
    precision: Precision,
    bytes: usize,
}

impl Loader<'_> {
    /// The values of a vector or small table, which have to be finite.
    pub fn values(&self, name: &str) -> Result<Vec<f32>> {
        let tensor = self.tensors.get(name)?;
        let values = tensor.to_finite_f32();
        tensor.release_pages();
        values
    }

    fn vector(&self, name: &str) -> Result<Buffer> {
        self.compute.upload(&self.values(name)?)
    }

    /// The linear layers of these internal names, stacked. Where only some have a bias, the others' is 0.
    pub fn linear(&mut self, names: &[String]) -> Result<Linear> {
        self.linear_as(names, Precision::Exact)
    }

    fn linear_as(&mut self, names: &[String], precision: Precision) -> Result<Linear> {
        let parts = names.iter().map(|n| self.tensors.linear(&format!("{n}.weight"))).collect::<Result<Vec<_>>>()?;
        let weight = self.compute.prepare_weight_as(&parts, precision)?;
        // The packed copy is what is computed with: the file's pages of one matrix at a time are enough.
        parts.iter().for_each(Tensor::release_pages);
        self.bytes += weight.bytes();
        let biases: Vec<String> = names.iter().map(|n| format!("{n}.bias")).collect();
        if !biases.iter().any(|b| self.tensors.has(b)) {
            return Ok(Linear { weight, bias: None });
        }
        let mut values = Vec::with_capacity(weight.n());
        for (bias, part) in biases.iter().zip(&parts) {
            if self.tensors.has(bias) {
                values.extend(self.values(bias)?);
            } else {
                values.resize(values.len() + part.shape()[0], 0.0);
            }
        }
        Ok(Linear { weight, bias: Some(self.compute.upload(&values)?) })
    }

    pub fn optional_linear(&mut self, name: &str) -> Result<Option<Linear>> {
        let has = self.tensors.has(&format!("{name}.weight"));
        has.then(|| self.linear(&[name.to_string()])).transpose()
    }

    /// The norm of an internal name, if the table has it.
    pub fn norm(&self, name: &str, kind: NormKind, eps: f32) -> Result<Option<NormWeights>> {
        let (gamma, beta) = (format!("{name}.weight"), format!("{name}.bias"));
        if !self.tensors.has(&gamma) {
            return Ok(None);
        }
        let beta = self.tensors.has(&beta).then(|| self.vector(&beta)).transpose()?;
        Ok(Some(NormWeights { kind, eps, gamma: self.vector(&gamma)?, beta }))
    }

    fn layer_norm(&self, name: &str) -> Result<Option<NormWeights>> {
        self.norm(name, self.spec.norm.kind, self.spec.norm.eps)
    }

    fn table(&self, name: &str) -> Result<Option<Table>> {
        let has = self.tensors.has(name);
        has.then(|| self.compute.prepare_table(&self.tensors.get(name)?)).transpose()
    }

    /// The relative embedding through a layer's projection of positions.
    fn positions(&mut self, relative: &Option<Buffer>, name: &str) -> Result<Option<Buffer>> {
        let (Some(relative), Some(linear)) = (relative, self.optional_linear(name)?) else { return Ok(None) };
        let rows = relative.len() / linear.weight.k().max(1);
        self.bytes -= linear.weight.bytes();
        linear.run(self.compute, relative, rows, Activation::Identity).map(Some)
    }

    fn layer(&mut self, index: usize, relative: &Option<Buffer>) -> Result<Layer> {
        let name = |part: &str| format!("layer.{index}.{part}");
        let fused = self.tensors.has(&name("qkv.weight"));
        let qkv = if fused { vec![name("qkv")] } else { vec![name("q"), name("k"), name("v")] };
        let qk = self.spec.attention.qk_norm;
        let qk_norm = |part: &str| match qk {
            Some(qk) => self.norm(&name(part), qk.kind, qk.eps),
            None => Ok(None),
        };
        let (q_norm, k_norm) = (qk_norm("q_norm")?, qk_norm("k_norm")?);
        let precision = self.precision;
        let gate = name("ffn_gate");
        let gated = self.tensors.has(&format!("{gate}.weight"));
        Ok(Layer {
            qkv: self.linear_as(&qkv, precision)?,
            q_norm,
            k_norm,
            position_keys: self.positions(relative, &name("position_key"))?,
            position_queries: self.positions(relative, &name("position_query"))?,
            attn_out: self.linear_as(&[name("attn_out")], precision)?,
            attn_inner_norm: self.layer_norm(&name("attn_inner_norm"))?,
            attn_norm: self.layer_norm(&name("attn_norm"))?,
            attn_out_norm: self.layer_norm(&name("attn_out_norm"))?,
            ffn_gate: gated.then(|| self.linear_as(&[gate], precision)).transpose()?,
            ffn_up: self.linear_as(&[name("ffn_up")], precision)?,
            ffn_down: self.linear_as(&[name("ffn_down")], precision)?,
            ffn_norm: self.layer_norm(&name("ffn_norm"))?,
            ffn_out_norm: self.layer_norm(&name("ffn_out_norm"))?,
        })
    }

    /// DeBERTa's relative embedding, normed where the spec says so.
    fn relative(&self) -> Result<Option<Buffer>> {
        let ScorePositions::Disentangled(d) = self.spec.attention.positions else { return Ok(None) };
        let mut relative = self.vector("relative")?;
        if d.normed {
            let norm = self.norm("relative_norm", NormKind::LayerNorm, self.spec.norm.eps)?;
            self.compute.norm_rows(&mut relative, required(norm, "relative_norm")?.norm())?;
        }
        Ok(Some(relative))
    }
}

/// A part that the spec asks for and the table has to have.
pub(super) fn required<T>(part: Option<T>, name: &str) -> Result<T> {
    part.ok_or_else(|| InferError::InvalidArgument(format!("the tensor table has no row `{name}`")))
}

impl Weights {
    pub fn load(spec: &ModelSpec, tensors: &Tensors, compute: &dyn GpuCompute, precision: Precision) -> Result<Self> {
        let mut loader = Loader { tensors, compute, spec, precision, bytes: 0 };
        let relative = loader.relative()?;
        let layers = (0..spec.stored_layers()).map(|l| loader.layer(l, &relative)).collect::<Result<_>>()?;
        let convolution = match loader.optional_linear("convolution")? {
            None => None,
            Some(kernel) => {
                let norm = required(loader.layer_norm("convolution_norm")?, "convolution_norm")?;
                Some(Convolution { kernel, norm })
            }
        };
        let embedding_norm = match spec.embedding.norm {
            Some(kind) => loader.norm("embedding.norm", kind, spec.norm.eps)?,
            None => None,
        };
        Ok(Self {
            word: required(loader.table("embedding.word")?, "embedding.word")?,
            token_type: loader.table("embedding.type")?,
            position: loader.table("embedding.position")?,
            embedding_norm,
            embedding_projection: loader.optional_linear("embedding.projection")?,
            positions: Positions::load(&loader)?,
            layers,
            convolution,
            final_norm: loader.layer_norm("final_norm")?,
            head: Head::load(&mut loader)?,
            bytes: loader.bytes,
        })
    }
}
