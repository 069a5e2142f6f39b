//! What a model computes, as plain data. The one forward pass executes it.

use crate::gpu::Activation;

/// A model, described.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelSpec {
    /// The family's `model_type`.
    pub family: &'static str,
    /// Features of a token vector.
    pub hidden_size: usize,
    /// Layers.
    pub layers: usize,
    /// What happens before the first layer.
    pub embedding: EmbeddingSpec,
    /// The norms of every layer.
    pub norm: NormSpec,
    /// The attention of every layer.
    pub attention: AttentionSpec,
    /// The feed-forward block of every layer.
    pub feed_forward: FeedForwardSpec,
    /// What follows the last layer.
    pub head: HeadSpec,
}

/// Token, token-type and position embeddings are added in this order, then normed.
#[derive(Debug, Clone, PartialEq)]
pub struct EmbeddingSpec {
    /// Token ids are below this.
    pub vocab_size: usize,
    /// Token types are below this; 0 where the family has none.
    pub token_types: usize,
    /// How order enters.
    pub positions: PositionSpec,
    /// Positions are below this.
    pub max_positions: usize,
}

/// How a model knows the order of its tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PositionSpec {
    /// One learned vector a position, added to the embedding.
    Learned,
    /// A bias of the attention scores, linear in the distance.
    Alibi,
}

/// A LayerNorm after each block's residual sum.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NormSpec {
    /// Added to the variance.
    pub eps: f32,
}

/// Multi-head attention with biases on all four projections.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionSpec {
    /// Heads.
    pub heads: usize,
    /// Features of a head.
    pub head_dim: usize,
    /// Factor of the scores.
    pub scale: f32,
}

/// Two linear layers with an activation between them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FeedForwardSpec {
    /// Features between the layers.
    pub intermediate_size: usize,
    /// The function between the layers.
    pub activation: Activation,
}

/// What follows the last layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadSpec {
    /// Nothing: token vectors are the output.
    None,
    /// The first token through a dense layer with tanh, then a linear layer to `labels` scores.
    Classifier {
        /// Number of scores.
        labels: usize,
    },
}

impl ModelSpec {
    /// The description in words, one aspect a line: what `kin-infer inspect` prints.
    pub fn words(&self) -> Vec<(&'static str, String)> {
        let e = &self.embedding;
        let positions = match e.positions {
            PositionSpec::Learned => format!("learned, {} positions", e.max_positions),
            PositionSpec::Alibi => format!("ALiBi (bidirectional linear biases), up to {} tokens", e.max_positions),
        };
        let head = match self.head {
            HeadSpec::None => "none: token vectors".to_string(),
            HeadSpec::Classifier { labels } => format!("first token, dense + tanh, linear to {labels} label(s)"),
        };
        let AttentionSpec { heads, head_dim, scale } = self.attention;
        vec![
            ("family", self.family.to_string()),
            ("layers", format!("{} of {} features", self.layers, self.hidden_size)),
            ("embedding", format!("{} tokens, {} token types, LayerNorm", e.vocab_size, e.token_types)),
            ("positions", positions),
            ("norm", format!("LayerNorm after each block (post-norm), eps {:e}", self.norm.eps)),
            ("attention", format!("{heads} heads of {head_dim}, bidirectional, scale {scale}")),
            (
                "feed-forward",
                format!("{} features, {}", self.feed_forward.intermediate_size, self.feed_forward.activation),
            ),
            ("head", head),
        ]
    }
}
