//! What follows the last layer: scores of a sequence, or of every vocabulary entry for each token.

use super::weights::{Linear, Loader, NormWeights};
use crate::arch::{HeadSpec, ModelSpec};
use crate::error::{InferError, Result};
use crate::gpu::{Activation, Buffer, GpuCompute, NormKind, PoolingMode, Segments};

/// dense -> activation -> norm, where there are any -> linear.
pub(super) struct Head {
    dense: Option<Linear>,
    norm: Option<NormWeights>,
    out: Linear,
}

/// How a sparse vector is made of a masked language model's scores (SPLADE, arXiv 2109.10086).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SparsePooling {
    /// Scores of tokens are added, and not the largest taken.
    pub sum: bool,
    /// A second logarithm: log(1 + log(1 + relu(score))).
    pub twice: bool,
}

impl SparsePooling {
    /// log(1 + relu(score)), in binary64 and rounded.
    fn weight(self, score: f32) -> f32 {
        let once = |x: f32| libm::log1p(f64::from(x)) as f32;
        let weight = once(if score < 0.0 { 0.0 } else { score });
        if self.twice { once(weight) } else { weight }
    }
}

/// Tokens whose vocabulary scores are held at once.
const SCORED_TOKENS: usize = 64;

fn absent() -> InferError {
    InferError::InvalidArgument("the model was loaded without this head".to_string())
}

impl Head {
    pub fn load(loader: &mut Loader) -> Result<Option<Self>> {
        if loader.spec.head == HeadSpec::None {
            return Ok(None);
        }
        let (dense, out) = (loader.optional_linear("head.dense")?, loader.linear(&["head.out".to_string()])?);
        let norm = loader.norm("head.norm", NormKind::LayerNorm, loader.spec.norm.eps)?;
        Ok(Some(Self { dense, norm, out }))
    }

    fn run(&self, compute: &dyn GpuCompute, x: &Buffer, rows: usize, activation: Activation) -> Result<Buffer> {
        let Some(dense) = &self.dense else { return self.out.run(compute, x, rows, Activation::Identity) };
        let mut inner = dense.run(compute, x, rows, activation)?;
        if let Some(norm) = &self.norm {
            compute.norm_rows(&mut inner, norm.norm())?;
        }
        self.out.run(compute, &inner, rows, Activation::Identity)
    }

    /// The scores of each sequence, [sequences, labels].
    pub fn classify(&self, c: &dyn GpuCompute, spec: &ModelSpec, hidden: &Buffer, s: &Segments) -> Result<Buffer> {
        let HeadSpec::Classifier { pooling, activation, .. } = spec.head else { return Err(absent()) };
        let (rows, width) = (s.len(), spec.hidden_size);
        let mut pooled = c.alloc(rows * width)?;
        c.pool(hidden, width, s, 0, pooling, (&mut pooled, 0, width))?;
        self.run(c, &pooled, rows, activation)
    }

    /// The scores of every vocabulary entry for `rows` tokens, [rows, vocab].
    pub fn token_scores(&self, c: &dyn GpuCompute, spec: &ModelSpec, x: &Buffer, rows: usize) -> Result<Buffer> {
        match spec.head {
            HeadSpec::MaskedLm { activation } => self.run(c, x, rows, activation),
            HeadSpec::CausalLm { softcap } => {
                let mut scores = self.run(c, x, rows, Activation::Identity)?;
                if let Some(cap) = softcap {
                    c.scale(&mut scores, 1.0 / cap)?;
                    c.activate(&mut scores, Activation::Tanh)?;
                    c.scale(&mut scores, cap)?;
                }
                Ok(scores)
            }
            HeadSpec::None | HeadSpec::Classifier { .. } => Err(absent()),
        }
    }

    /// The sparse vector of each sequence, `[vocab]`. The largest score of each entry is found on the device.
    pub fn sparse(
        &self,
        c: &dyn GpuCompute,
        spec: &ModelSpec,
        hidden: &Buffer,
        segments: &Segments,
        pooling: SparsePooling,
    ) -> Result<Vec<Vec<f32>>> {
        let (width, vocab) = (spec.hidden_size, spec.embedding.vocab_size);
        let sequence = |segment: std::ops::Range<usize>| {
            let chunks = segment.len().div_ceil(SCORED_TOKENS);
            let mut largest = c.alloc(chunks * vocab)?;
            let mut sum = vec![0f32; if pooling.sum { vocab } else { 0 }];
            for chunk in 0..chunks {
                let first = segment.start + chunk * SCORED_TOKENS;
                let rows = SCORED_TOKENS.min(segment.end - first);
                let mut x = c.alloc(rows * width)?;
                c.copy_rows(hidden, width, first, &mut x)?;
                let scores = self.token_scores(c, spec, &x, rows)?;
                if pooling.sum {
                    add_weights(c, &scores, pooling, &mut sum)?;
                } else {
                    let whole = Segments::from_lengths([rows]);
                    let out = (&mut largest, chunk * vocab, chunks * vocab);
                    c.pool(&scores, vocab, &whole, 0, PoolingMode::Max, out)?;
                }
            }
            if pooling.sum {
                return Ok(sum);
            }
            let mut out = c.alloc(vocab)?;
            c.pool(&largest, vocab, &Segments::from_lengths([chunks]), 0, PoolingMode::Max, (&mut out, 0, vocab))?;
            let mut values = vec![0.0; vocab];
            c.read(&out, &mut values)?;
            values.iter_mut().for_each(|v| *v = pooling.weight(*v));
            Ok(values)
        };
        segments.iter().map(sequence).collect()
    }
}

/// Adds the weights of each token's scores, token after token.
fn add_weights(c: &dyn GpuCompute, scores: &Buffer, pooling: SparsePooling, sum: &mut [f32]) -> Result<()> {
    let mut values = vec![0.0; scores.len()];
    c.read(scores, &mut values)?;
    for row in values.chunks_exact(sum.len()) {
        sum.iter_mut().zip(row).for_each(|(s, v)| *s += pooling.weight(*v));
    }
    Ok(())
}
