//! What a model computes, as plain data. The one forward pass executes it.

use super::rope::RopeSpec;
use crate::gpu::{Activation, NormKind, PoolingMode};

/// A model, described.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelSpec {
    /// The family's `model_type`.
    pub family: &'static str,
    /// Features of a token vector.
    pub hidden_size: usize,
    /// What happens before the first layer.
    pub embedding: EmbeddingSpec,
    /// The norms of every layer.
    pub norm: NormSpec,
    /// The attention of every layer.
    pub attention: AttentionSpec,
    /// The feed-forward block of every layer.
    pub feed_forward: FeedForwardSpec,
    /// The layers, in the order in which they run.
    pub layers: Vec<LayerSpec>,
    /// A convolution over tokens, added to the first layer's output (DeBERTa-v2).
    pub convolution: Option<ConvolutionSpec>,
    /// What follows the last layer.
    pub head: HeadSpec,
    /// Tokens of the longest sequence; `usize::MAX` where nothing in the model limits it.
    pub max_tokens: usize,
    /// Tokens of the longest sequence the model was made for: the window where nothing else sets one.
    pub trained_tokens: usize,
}

/// Token, token-type and position embeddings are added in that order, scaled, normed and projected, where they exist.
#[derive(Debug, Clone, PartialEq)]
pub struct EmbeddingSpec {
    /// Token ids are below this.
    pub vocab_size: usize,
    /// Features of an embedding; other than the hidden size where a projection follows.
    pub width: usize,
    /// Token types are below this; 0 where the family has none.
    pub token_types: usize,
    /// Learned positions.
    pub positions: Option<LearnedPositions>,
    /// Factor of the sum.
    pub scale: Option<f32>,
    /// The norm that follows the sum.
    pub norm: Option<NormKind>,
    /// Whether that norm follows the projection, and not the sum.
    pub norm_projected: bool,
}

/// One learned vector a position, added to the embedding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LearnedPositions {
    /// Rows of the table.
    pub rows: usize,
    /// How tokens are numbered.
    pub numbering: Numbering,
}

/// Which row of the position table a token takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Numbering {
    /// Its position in the sequence, from 0.
    Position,
    /// RoBERTa's: a token with this id, the padding, takes row id; the others the rows id + 1, id + 2, ...
    AfterPadding(u32),
}

/// The norms of a layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NormSpec {
    /// Which norm.
    pub kind: NormKind,
    /// Added to the variance.
    pub eps: f32,
    /// Where it stands.
    pub place: NormPlace,
}

/// Where a layer's norms stand; f is attention or the feed-forward block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormPlace {
    /// norm(x + f(x))
    Post,
    /// x + f(norm(x)), and a norm after the last layer.
    Pre,
    /// x + norm(f(norm(x))), and a norm after the last layer.
    Both,
    /// x + attention(norm(x)) + feed_forward(norm(x)), and a norm after the last layer.
    Parallel,
}

/// Multi-head attention.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionSpec {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Features of a head.
    pub head_dim: usize,
    /// Factor of the scores.
    pub scale: f32,
    /// How distance enters the scores.
    pub positions: ScorePositions,
    /// Norms of queries and keys.
    pub qk_norm: Option<QkNorm>,
    /// Whether a token sees only itself and those before it.
    pub causal: bool,
    /// Scaled scores become c tanh(z / c).
    pub softcap: Option<f32>,
}

/// A norm of queries and keys before positions enter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QkNorm {
    /// Which norm.
    pub kind: NormKind,
    /// Added to the variance.
    pub eps: f32,
    /// Over each head, or over all heads together.
    pub per_head: bool,
}

/// How the distance of two tokens enters their attention score.
#[derive(Debug, Clone, PartialEq)]
pub enum ScorePositions {
    /// Not at all: learned positions at most.
    None,
    /// Linear biases of the scores, symmetric in the distance (arXiv 2108.12409).
    Alibi,
    /// Rotations of queries and keys; a layer names which.
    Rope(Vec<RopeSpec>),
    /// A learned bias a head and bucket of distances, the same in all layers (arXiv 1910.10683).
    Buckets(BucketSpec),
    /// Scores between contents and relative positions (arXiv 2006.03654).
    Disentangled(DisentangledSpec),
}

/// T5's buckets: near distances have one each, farther ones share them logarithmically.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BucketSpec {
    /// Buckets, half of them for each direction.
    pub buckets: usize,
    /// Distances from here on share the last bucket.
    pub max_distance: usize,
}

/// DeBERTa's relative positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DisentangledSpec {
    /// Half the rows of the relative embedding.
    pub span: usize,
    /// Version 2: distances beyond half the span are bucketed logarithmically up to this one.
    pub log_buckets_to: Option<usize>,
    /// Contents of queries meet positions.
    pub content_to_position: bool,
    /// Positions meet contents of keys.
    pub position_to_content: bool,
    /// Positions share the content's key and query projections.
    pub shared_projections: bool,
    /// Whether a LayerNorm normalises the relative embedding.
    pub normed: bool,
}

/// Linear layers with an activation between them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FeedForwardSpec {
    /// Features between the layers.
    pub intermediate_size: usize,
    /// The function between the layers.
    pub activation: Activation,
    /// Whether the activation gates a second projection: down(act(gate x) * (up x)) (arXiv 2002.05202).
    pub gated: bool,
}

/// What one layer does differently from the others.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LayerSpec {
    /// Which stored layer's weights it uses.
    pub weights: usize,
    /// It attends to keys at most so many positions away, on either side where the model is not causal.
    pub window: Option<u32>,
    /// Which of the model's rotations it uses.
    pub rope: usize,
    /// Factor of the scores, where it is not the model's.
    pub scale: Option<f32>,
}

/// A convolution over tokens, DeBERTa-v2's: norm(layer + act(conv(embeddings))).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ConvolutionSpec {
    /// Neighbouring tokens it sees, itself included.
    pub taps: usize,
    /// The function after it.
    pub activation: Activation,
}

/// What follows the last layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum HeadSpec {
    /// Nothing: token vectors are the output.
    None,
    /// One vector of the sequence through a dense layer, then a linear layer to scores.
    Classifier {
        /// Number of scores.
        labels: usize,
        /// How token vectors become one.
        pooling: PoolingMode,
        /// The dense layer's function.
        activation: Activation,
        /// Whether a norm follows the dense layer.
        norm: bool,
    },
    /// Scores of every vocabulary entry for each token: dense layer, norm, linear layer.
    MaskedLm {
        /// The dense layer's function.
        activation: Activation,
    },
    /// Scores of every vocabulary entry for the next token.
    CausalLm {
        /// Scores become c tanh(x / c).
        softcap: Option<f32>,
    },
}

impl ModelSpec {
    /// Layers whose weights are stored.
    pub fn stored_layers(&self) -> usize {
        self.layers.iter().map(|l| l.weights + 1).max().unwrap_or(0)
    }

    /// Layers that use the stored layers 0, 1, 2, ... and see every key.
    pub fn plain_layers(count: usize) -> Vec<LayerSpec> {
        (0..count).map(|weights| LayerSpec { weights, window: None, rope: 0, scale: None }).collect()
    }
}
