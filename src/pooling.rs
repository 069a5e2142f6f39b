//! From token vectors to one vector a text: the modules of a sentence-transformers folder, loaded.

use crate::error::{InferError, Result};
use crate::gpu::{Activation, Buffer, Epilogue, GpuCompute, Norm, NormKind, PoolingMode, Segments, Weight};
use crate::modules::Module;
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

/// Steps that turn the token vectors of each sequence into one vector.
pub struct Pooler {
    steps: Vec<Step>,
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

impl Pooler {
    /// From steps of which the first pools tokens of `hidden_size` features.
    pub fn new(steps: Vec<Step>, hidden_size: usize) -> Self {
        let dimension = steps.iter().fold(hidden_size, |width, step| match step {
            Step::Pool { mode, .. } => width * mode.len(),
            Step::Dense { weight, .. } => weight.n(),
            Step::LayerNorm { .. } | Step::Normalize => width,
        });
        Self { steps, dimension }
    }

    /// Loads the modules that follow a transformer of `hidden_size` features.
    ///
    /// # Errors
    /// Modules whose sizes do not fit one another; tensors that are missing or of another shape.
    pub fn load(modules: &[Module], hidden_size: usize, compute: &dyn GpuCompute) -> Result<Self> {
        let mut steps = Vec::new();
        let mut width = hidden_size;
        let fits = |what: &str, size: usize, width: usize| {
            if size == width {
                return Ok(());
            }
            Err(InferError::ModelIncompatible {
                key: what.to_string(),
                expected: format!("{width}, the length of the vector that comes in"),
                found: size.to_string(),
            })
        };
        for module in modules {
            steps.push(match module {
                Module::Pooling(p) => {
                    if let Some(d) = p.dimension {
                        fits("word_embedding_dimension", d, width)?;
                    }
                    width *= p.modes.len();
                    Step::Pool { mode: p.modes.clone(), include_prompt: p.include_prompt }
                }
                Module::Dense(d) => {
                    fits("in_features", d.in_features, width)?;
                    width = d.out_features;
                    let checkpoint = Checkpoint::open(&d.dir)?;
                    let weight = tensor(&checkpoint, "linear.weight", &[d.out_features, d.in_features])?;
                    let weight = compute.prepare_weight(std::slice::from_ref(weight))?;
                    let bias = if d.bias {
                        let values = tensor(&checkpoint, "linear.bias", &[d.out_features])?.to_f32()?;
                        Some(compute.upload(&values)?)
                    } else {
                        None
                    };
                    Step::Dense { weight, bias, activation: d.activation }
                }
                Module::LayerNorm(n) => {
                    fits("dimension", n.dimension, width)?;
                    let checkpoint = Checkpoint::open(&n.dir)?;
                    let load = |name| compute.upload(&tensor(&checkpoint, name, &[n.dimension])?.to_f32()?);
                    Step::LayerNorm { gamma: load("norm.weight")?, beta: load("norm.bias")? }
                }
                Module::Normalize => Step::Normalize,
            });
        }
        Ok(Self { steps, dimension: width })
    }

    /// Length of a vector.
    pub fn dimension(&self) -> usize {
        self.dimension
    }

    /// The vectors of each segment of `hidden`, [segments, dimension]. The first `prompt` tokens of each are a prompt.
    pub(crate) fn run(
        &self,
        compute: &dyn GpuCompute,
        hidden: &Buffer,
        segments: &Segments,
        prompt: usize,
    ) -> Result<Buffer> {
        let rows = segments.len();
        let mut x: Option<Buffer> = None;
        for step in &self.steps {
            x = Some(match (step, x) {
                (Step::Pool { mode, include_prompt }, None) => {
                    let cols = hidden.len() / segments.total().max(1);
                    let stride = cols * mode.len();
                    let mut out = compute.alloc(rows * stride)?;
                    for (i, mode) in mode.iter().enumerate() {
                        // The last token is the text's also when the prompt is left out.
                        let skip = if *include_prompt || *mode == PoolingMode::LastToken { 0 } else { prompt };
                        compute.pool(hidden, cols, segments, skip, *mode, (&mut out, i * cols, stride))?;
                    }
                    out
                }
                (Step::Dense { weight, bias, activation }, Some(x)) => {
                    let mut out = compute.alloc(rows * weight.n())?;
                    let epilogue = Epilogue { bias: bias.as_ref(), activation: *activation, ..Epilogue::NONE };
                    compute.matmul(&x, rows, weight, epilogue, &mut out)?;
                    out
                }
                (Step::LayerNorm { gamma, beta }, Some(mut x)) => {
                    let kind = NormKind::LayerNorm;
                    compute.norm_rows(&mut x, Norm { kind, gamma, beta: Some(beta), eps: MODULE_EPS })?;
                    x
                }
                (Step::Normalize, Some(mut x)) => {
                    let cols = x.len() / rows.max(1);
                    compute.l2_normalize(&mut x, cols)?;
                    x
                }
                (Step::Pool { .. }, Some(_)) | (_, None) => {
                    return Err(InferError::InvalidArgument("exactly the first module has to be a pooling".into()));
                }
            });
        }
        x.ok_or_else(|| InferError::InvalidArgument("no pooling module".to_string()))
    }
}
