//! From the transformer's token vectors to one vector a text, or to those of late interaction: the modules of a
//! sentence-transformers folder, loaded.

use crate::error::{InferError, Result};
use crate::gpu::{Activation, Buffer, Epilogue, GpuCompute, Norm, NormKind, PoolingMode, Segments, Weight};
use crate::modules::{DenseSpec, Module};
use crate::weights::{Checkpoint, Tensor};

/// One step of a [`Pooler`].
pub enum Step {
    /// Token vectors to one vector: the modes' vectors one after the other.
    Pool {
        /// The modes, in order.
        mode: Vec<PoolingMode>,
        /// Whether a prompt's tokens take part.
        include_prompt: bool,
    },
    /// `act(x W^T + bias)`
    Dense {
        /// [out, in]
        weight: Weight,
        /// `[out]`
        bias: Option<Buffer>,
        /// Applied last.
        activation: Activation,
    },
    /// LayerNorm with epsilon 1e-5.
    LayerNorm {
        /// Scale.
        gamma: Buffer,
        /// Shift.
        beta: Buffer,
    },
    /// Division by the Euclidean norm.
    Normalize,
}

/// Steps that turn the token vectors of each sequence into one vector, or into other token vectors where none pools.
pub struct Pooler {
    steps: Vec<Step>,
    /// How many steps, from the first, work on token vectors.
    on_tokens: usize,
    token_dimension: usize,
    dimension: usize,
}

/// torch.nn.LayerNorm's default, which the LayerNorm module of sentence-transformers keeps.
const MODULE_EPS: f32 = 1e-5;

fn tensor<'a>(c: &'a Checkpoint, name: &str, shape: &[usize]) -> Result<&'a Tensor> {
    let t = c.tensor(name)?;
    if t.shape() != shape {
        return Err(InferError::TensorError {
            file: t.file().to_path_buf(),
            tensor: name.to_string(),
            expected: format!("shape {shape:?}"),
            found: format!("shape {:?}", t.shape()),
        });
    }
    Ok(t)
}

impl Step {
    /// Length of the vector that comes out when one of length `width` comes in.
    fn width(&self, width: usize) -> usize {
        match self {
            Self::Pool { mode, .. } => width * mode.len(),
            Self::Dense { weight, .. } => weight.n(),
            Self::LayerNorm { .. } | Self::Normalize => width,
        }
    }

    /// The step on each of `rows` vectors.
    fn on_rows(&self, compute: &dyn GpuCompute, x: &Buffer, rows: usize) -> Result<Buffer> {
        let cols = x.len() / rows.max(1);
        if let Self::Dense { weight, bias, activation } = self {
            let mut out = compute.alloc(rows * weight.n())?;
            let epilogue = Epilogue { bias: bias.as_ref(), activation: *activation, ..Epilogue::NONE };
            compute.matmul(x, rows, weight, epilogue, &mut out)?;
            return Ok(out);
        }
        let mut out = compute.alloc(x.len())?;
        compute.copy_rows(x, cols, 0, &mut out)?;
        match self {
            Self::LayerNorm { gamma, beta } => {
                let norm = Norm { kind: NormKind::LayerNorm, gamma, beta: Some(beta), eps: MODULE_EPS };
                compute.norm_rows(&mut out, norm)?;
            }
            Self::Normalize => compute.l2_normalize(&mut out, cols)?,
            Self::Pool { .. } | Self::Dense { .. } => return Err(second_pooling()),
        }
        Ok(out)
    }
}

fn second_pooling() -> InferError {
    InferError::InvalidArgument("a text is pooled once".to_string())
}

impl Pooler {
    /// From steps on token vectors of `hidden_size` features, one of which pools.
    pub fn new(steps: Vec<Step>, hidden_size: usize) -> Self {
        let on_tokens = steps.iter().position(|s| matches!(s, Step::Pool { .. })).unwrap_or(steps.len());
        let token_dimension = steps[..on_tokens].iter().fold(hidden_size, |width, step| step.width(width));
        let dimension = steps[on_tokens..].iter().fold(token_dimension, |width, step| step.width(width));
        Self { steps, on_tokens, token_dimension, dimension }
    }

    /// Loads the modules that follow a transformer of `hidden_size` features. Filters of tokens are no steps.
    ///
    /// # Errors
    /// Modules whose sizes do not fit one another; tensors that are missing or of another shape.
    pub fn load(modules: &[Module], hidden_size: usize, compute: &dyn GpuCompute) -> Result<Self> {
        let mut steps = Vec::new();
        let mut width = hidden_size;
        for module in modules {
            let step = match module {
                Module::Pooling(p) => {
                    fits("word_embedding_dimension", p.dimension.unwrap_or(width), width)?;
                    Step::Pool { mode: p.modes.clone(), include_prompt: p.include_prompt }
                }
                Module::Dense(d) => {
                    fits("in_features", d.in_features, width)?;
                    load_dense(d, compute)?
                }
                Module::LayerNorm(n) => {
                    fits("dimension", n.dimension, width)?;
                    let checkpoint = Checkpoint::open(&n.dir)?;
                    let load = |name| compute.upload(&tensor(&checkpoint, name, &[n.dimension])?.to_f32()?);
                    Step::LayerNorm { gamma: load("norm.weight")?, beta: load("norm.bias")? }
                }
                Module::Normalize => Step::Normalize,
                Module::TokenFilter(_) => continue,
                Module::Splade(_) => {
                    let why = "SpladePooling takes scores of the vocabulary, not token vectors";
                    return Err(InferError::InvalidArgument(why.to_string()));
                }
            };
            width = step.width(width);
            steps.push(step);
        }
        Ok(Self::new(steps, hidden_size))
    }

    /// Length of a vector.
    pub fn dimension(&self) -> usize {
        self.dimension
    }

    /// Length of a token's vector, before the pooling.
    pub fn token_dimension(&self) -> usize {
        self.token_dimension
    }

    /// Whether a step makes one vector of a sequence.
    pub fn pools(&self) -> bool {
        self.on_tokens < self.steps.len()
    }

    /// The token vectors that are pooled, [rows, token_dimension], of a sequence's `hidden`, [rows, hidden_size].
    pub(crate) fn tokens(&self, compute: &dyn GpuCompute, hidden: Vec<f32>, rows: usize) -> Result<Vec<f32>> {
        if self.on_tokens == 0 {
            return Ok(hidden);
        }
        let x = self.token_steps(compute, &compute.upload(&hidden)?, rows)?;
        let mut values = vec![0.0; rows * self.token_dimension];
        x.map_or(Ok(()), |x| compute.read(&x, &mut values))?;
        Ok(values)
    }

    /// The steps before the pooling; `None` where there are none.
    fn token_steps(&self, compute: &dyn GpuCompute, hidden: &Buffer, rows: usize) -> Result<Option<Buffer>> {
        self.steps[..self.on_tokens].iter().try_fold(None, |x: Option<Buffer>, step| {
            step.on_rows(compute, x.as_ref().unwrap_or(hidden), rows).map(Some)
        })
    }

    /// The vectors of each segment of `hidden`, [segments, dimension]. The first `prompt` tokens of each are a prompt.
    pub(crate) fn run(
        &self,
        compute: &dyn GpuCompute,
        hidden: &Buffer,
        segments: &Segments,
        prompt: usize,
    ) -> Result<Buffer> {
        let Some(Step::Pool { mode, include_prompt }) = self.steps.get(self.on_tokens) else {
            return Err(InferError::InvalidArgument("no pooling module".to_string()));
        };
        let tokens = self.token_steps(compute, hidden, segments.total())?;
        let tokens = tokens.as_ref().unwrap_or(hidden);
        let (rows, cols) = (segments.len(), self.token_dimension);
        let stride = cols * mode.len();
        let mut x = compute.alloc(rows * stride)?;
        for (i, mode) in mode.iter().enumerate() {
            // The last token is the text's also when the prompt is left out.
            let skip = if *include_prompt || *mode == PoolingMode::LastToken { 0 } else { prompt };
            compute.pool(tokens, cols, segments, skip, *mode, (&mut x, i * cols, stride))?;
        }
        for step in &self.steps[self.on_tokens + 1..] {
            x = step.on_rows(compute, &x, rows)?;
        }
        Ok(x)
    }
}

fn fits(what: &str, size: usize, width: usize) -> Result<()> {
    if size == width {
        return Ok(());
    }
    Err(InferError::ModelIncompatible {
        key: what.to_string(),
        expected: format!("{width}, the length of the vector that comes in"),
        found: size.to_string(),
    })
}

fn load_dense(d: &DenseSpec, compute: &dyn GpuCompute) -> Result<Step> {
    let checkpoint = Checkpoint::open(&d.dir)?;
    let weight = tensor(&checkpoint, "linear.weight", &[d.out_features, d.in_features])?;
    let weight = compute.prepare_weight(std::slice::from_ref(weight))?;
    let bias = if d.bias {
        Some(compute.upload(&tensor(&checkpoint, "linear.bias", &[d.out_features])?.to_f32()?)?)
    } else {
        None
    };
    Ok(Step::Dense { weight, bias, activation: d.activation })
}
