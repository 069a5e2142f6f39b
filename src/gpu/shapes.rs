//! The small named structs in which shapes and options travel to a backend.

use std::ops::Range;

use super::{Buffer, IndexBuffer};

/// An elementwise function of a feed-forward or dense layer. `GeluErf` is x Phi(x), `GeluTanh` its tanh approximation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// x
    Identity,
    /// max(x, 0)
    Relu,
    /// x Phi(x)
    GeluErf,
    /// 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
    GeluTanh,
    /// x / (1 + e^-x)
    Silu,
    /// 1 / (1 + e^-x)
    Sigmoid,
    /// tanh x
    Tanh,
}

impl std::fmt::Display for Activation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Identity => "identity",
            Self::Relu => "ReLU",
            Self::GeluErf => "GELU (erf)",
            Self::GeluTanh => "GELU (tanh)",
            Self::Silu => "SiLU",
            Self::Sigmoid => "sigmoid",
            Self::Tanh => "tanh",
        })
    }
}

/// How precisely the linear layers inside a model's layers are computed: queries, keys and values, attention's output,
/// the feed-forward block. Everything else is f32 always.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Precision {
    /// f32 weights and weights of 16 bits in f32, blocks as their integers.
    #[default]
    Exact,
    /// Weights of any type become 8-bit integers when they are loaded, with a scale for each output feature; inputs are
    /// quantised row by row. Several times faster, a little less precise (docs/accuracy.md), the same bits everywhere.
    Int8,
}

impl std::fmt::Display for Precision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Exact => "exact",
            Self::Int8 => "int8",
        })
    }
}

/// How the token vectors of a sequence become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolingMode {
    /// The first token.
    Cls,
    /// The largest value of each feature.
    Max,
    /// The sum over tokens, divided by their number.
    Mean,
    /// The sum over tokens, divided by the square root of their number.
    MeanSqrtLen,
    /// The sum of (i + 1) x_i, divided by the sum of the weights i + 1; i counts the tokens from 0.
    WeightedMean,
    /// The last token.
    LastToken,
}

impl std::fmt::Display for PoolingMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Cls => "first token",
            Self::Max => "maximum",
            Self::Mean => "mean",
            Self::MeanSqrtLen => "sum / sqrt(length)",
            Self::WeightedMean => "mean weighted by position",
            Self::LastToken => "last token",
        })
    }
}

/// What a linear layer does on the way out: `act(x W^T + bias) * factor + residual`.
#[derive(Clone, Copy)]
pub struct Epilogue<'a> {
    /// `[n]`, added to each row.
    pub bias: Option<&'a Buffer>,
    /// Applied after the bias.
    pub activation: Activation,
    /// [rows, n], multiplied with the activation's result.
    pub factor: Option<&'a Buffer>,
    /// [rows, n], added last.
    pub residual: Option<&'a Buffer>,
}

impl Epilogue<'_> {
    /// Nothing but the product.
    pub const NONE: Epilogue<'static> =
        Epilogue { bias: None, activation: Activation::Identity, factor: None, residual: None };
}

/// Columns of a row-major matrix: row r is `buffer[r * stride + first ..]`.
#[derive(Clone, Copy)]
pub struct Columns<'a> {
    /// The matrix.
    pub buffer: &'a Buffer,
    /// The first column.
    pub first: usize,
    /// The matrix' width.
    pub stride: usize,
}

/// Where each sequence of a packed batch lies: sequence i holds the rows `offsets[i]..offsets[i + 1]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segments {
    offsets: Vec<usize>,
}

impl Segments {
    /// From the sequences' lengths.
    pub fn from_lengths(lengths: impl IntoIterator<Item = usize>) -> Self {
        let mut offsets = vec![0];
        let mut end = 0;
        for len in lengths {
            end += len;
            offsets.push(end);
        }
        Self { offsets }
    }

    /// Number of sequences.
    pub fn len(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Rows in all.
    pub fn total(&self) -> usize {
        self.offsets[self.offsets.len() - 1]
    }

    /// The rows of sequence i.
    pub fn range(&self, i: usize) -> Range<usize> {
        self.offsets[i]..self.offsets[i + 1]
    }

    /// The rows of each sequence in turn.
    pub fn iter(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        self.offsets.windows(2).map(|w| w[0]..w[1])
    }

    /// The neighbourhoods of a convolution over tokens: for each row in turn, tap after tap, the row of its sequence
    /// whose position is `position + tap - taps / 2`, if the sequence has one. Positions ascend within a sequence.
    pub(crate) fn neighbours<'a>(
        &'a self,
        positions: &'a [u32],
        taps: usize,
    ) -> impl Iterator<Item = Option<usize>> + 'a {
        self.iter().flat_map(move |segment| {
            let (start, own) = (segment.start, &positions[segment]);
            own.iter().flat_map(move |position| {
                (0..taps).map(move |tap| {
                    let wanted = (*position as usize + tap).checked_sub(taps / 2)?;
                    Some(start + own.binary_search(&u32::try_from(wanted).ok()?).ok()?)
                })
            })
        })
    }
}

/// What is added to the attention scores of a query and a key by their distance.
#[derive(Clone, Copy, Default)]
pub enum ScoreBias<'a> {
    /// Nothing.
    #[default]
    None,
    /// Linear biases (arXiv 2108.12409), the bidirectional form: -slope |i - j| is added to a scaled score.
    Alibi {
        /// `[heads]`
        slopes: &'a Buffer,
    },
    /// A learned value a head and distance (arXiv 1910.10683), added to a scaled score: `table[h][d + reach]` for
    /// d = position of the key - position of the query, limited to -reach..=reach.
    Distance {
        /// [heads, 2 reach + 1]
        table: &'a Buffer,
        /// Distances beyond it count as it.
        reach: usize,
    },
    /// Scores between contents and relative positions (arXiv 2006.03654), added to the raw score, before the scale.
    Disentangled(Disentangled<'a>),
}

/// For query i and key j, with m = `map[d + reach]`, d = position of i - position of j limited to -reach..=reach:
/// `q_i . position_keys[m] + k_j . position_queries[m]`, either term where its operand is there.
#[derive(Clone, Copy)]
pub struct Disentangled<'a> {
    /// `[2 reach + 1]`: the row of each distance, ascending.
    pub map: &'a IndexBuffer,
    /// Distances beyond it count as it.
    pub reach: usize,
    /// [rows, heads * head_dim]: content to position.
    pub position_keys: Option<&'a Buffer>,
    /// [rows, heads * head_dim]: position to content.
    pub position_queries: Option<&'a Buffer>,
}

/// Which keys a query sees: those at positions from its own - `behind` to its own + `ahead`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyWindow {
    /// Positions before the query's.
    pub behind: u32,
    /// Positions after the query's; 0 is causal attention.
    pub ahead: u32,
}

impl KeyWindow {
    /// Every key of the sequence.
    pub const ALL: Self = Self { behind: u32::MAX, ahead: u32::MAX };
}

/// Self-attention over the sequences of a packed batch, each attending to its own tokens only.
#[derive(Clone, Copy)]
pub struct AttentionShape<'a> {
    /// The sequences.
    pub segments: &'a Segments,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; each serves `heads / kv_heads` query heads.
    pub kv_heads: usize,
    /// Features of a head.
    pub head_dim: usize,
    /// Factor of the scores.
    pub scale: f32,
    /// `[rows]`: the position of each token, ascending within a sequence.
    pub positions: &'a IndexBuffer,
    /// What distances add to the scores.
    pub bias: ScoreBias<'a>,
    /// Which keys take part.
    pub window: KeyWindow,
    /// Scaled scores become c tanh(z / c) before biases.
    pub softcap: Option<f32>,
}

impl AttentionShape<'_> {
    /// Values of a score buffer: sequence after sequence, [heads, len, len] each.
    pub fn score_len(&self) -> usize {
        // Saturating: no buffer is that long, and what checks lengths says so.
        let of = |len: usize| self.heads.saturating_mul(len).saturating_mul(len);
        self.segments.iter().fold(0, |sum: usize, r| sum.saturating_add(of(r.len())))
    }
}

/// Causal self-attention of new tokens over stored keys, their own included. The rows of a sequence are its last ones.
#[derive(Clone, Copy)]
pub struct StoredAttention<'a> {
    /// The new rows of each sequence.
    pub segments: &'a Segments,
    /// Query heads; the stores' key heads divide them.
    pub heads: usize,
    /// Factor of the scores.
    pub scale: f32,
    /// Keys before the query's own that take part.
    pub behind: u32,
    /// Scaled scores become c tanh(z / c).
    pub softcap: Option<f32>,
}

/// Which norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormKind {
    /// (x - mean) / sqrt(variance + eps) * gamma + beta (arXiv 1607.06450).
    LayerNorm,
    /// x / sqrt(mean of squares + eps) * gamma (arXiv 1910.07467).
    RmsNorm,
}

impl std::fmt::Display for NormKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::LayerNorm => "LayerNorm",
            Self::RmsNorm => "RMSNorm",
        })
    }
}

/// A norm and its parameters; it normalises as many values at a time as `gamma` has.
#[derive(Clone, Copy)]
pub struct Norm<'a> {
    /// Which norm.
    pub kind: NormKind,
    /// Scale of each value.
    pub gamma: &'a Buffer,
    /// Added to each value; LayerNorm only.
    pub beta: Option<&'a Buffer>,
    /// Added under the root.
    pub eps: f32,
}

/// Equal slices of each row of a matrix: `count` of them side by side from column `first`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slices {
    /// The first column of the first slice.
    pub first: usize,
    /// Slices in a row.
    pub count: usize,
    /// The matrix' width.
    pub stride: usize,
}

/// Which features of a head form a rotated pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopeLayout {
    /// Feature i with feature i + rotary_dim / 2 (GPT-NeoX, LLaMA in transformers).
    Halves,
    /// Feature 2i with feature 2i + 1 (GPT-J).
    Interleaved,
}

/// Rotary position embedding (arXiv 2104.09864) of `heads` heads that start at column `first`.
#[derive(Clone, Copy)]
pub struct Rope<'a> {
    /// Cosine of each position and pair, [positions, rotary_dim / 2].
    pub cos: &'a Buffer,
    /// Sine of each position and pair, [positions, rotary_dim / 2].
    pub sin: &'a Buffer,
    /// `[rows]`: the position of each row.
    pub positions: &'a IndexBuffer,
    /// The first column of the first head.
    pub first: usize,
    /// Width of the matrix.
    pub stride: usize,
    /// Heads to rotate.
    pub heads: usize,
    /// Features of a head.
    pub head_dim: usize,
    /// Features of a head that are rotated; the rest pass.
    pub rotary_dim: usize,
    /// Which features form a pair.
    pub layout: RopeLayout,
}
