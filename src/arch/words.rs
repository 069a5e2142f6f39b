//! A model's description in words: what `kin-infer inspect` prints.

use super::{HeadSpec, ModelSpec, NormPlace, Numbering, RopeSpec, ScorePositions};

impl ModelSpec {
    /// The description, one aspect a line.
    pub fn words(&self) -> Vec<(&'static str, String)> {
        let mut lines = vec![
            ("family", self.family.to_string()),
            ("layers", self.layers_in_words()),
            ("embedding", self.embedding_in_words()),
            ("positions", self.positions_in_words()),
            ("norm", self.norm_in_words()),
            ("attention", self.attention_in_words()),
            ("feed-forward", self.feed_forward_in_words()),
        ];
        if let Some(c) = self.convolution {
            let text = format!("over {} tokens after the first layer, {}", c.taps, c.activation);
            lines.push(("convolution", text));
        }
        lines.push(("head", self.head_in_words()));
        let limit =
            if self.max_tokens == usize::MAX { "no limit of its own".into() } else { self.max_tokens.to_string() };
        lines.push(("longest sequence", limit));
        lines
    }

    fn layers_in_words(&self) -> String {
        let (run, stored) = (self.layers.len(), self.stored_layers());
        let shared = if stored < run { format!(", the weights of {stored} shared") } else { String::new() };
        format!("{run} of {} features{shared}", self.hidden_size)
    }

    fn embedding_in_words(&self) -> String {
        let e = &self.embedding;
        let mut text = format!("{} tokens", e.vocab_size);
        if e.token_types > 0 {
            text += &format!(", {} token types", e.token_types);
        }
        if let Some(scale) = e.scale {
            text += &format!(", times {scale}");
        }
        if let Some(norm) = e.norm {
            text += &format!(", {norm}");
        }
        if e.width != self.hidden_size {
            text += &format!(", {} features projected to {}", e.width, self.hidden_size);
        }
        text
    }

    fn positions_in_words(&self) -> String {
        let learned = self.embedding.positions.map(|p| match p.numbering {
            Numbering::Position => format!("learned, {} positions", p.rows),
            Numbering::AfterPadding(id) => format!("learned, {} positions, counted from {} on", p.rows, id + 1),
        });
        let relative = match &self.attention.positions {
            ScorePositions::None => None,
            ScorePositions::Alibi => Some("ALiBi (bidirectional linear biases)".to_string()),
            ScorePositions::Rope(ropes) => Some(ropes.iter().map(RopeSpec::in_words).collect::<Vec<_>>().join("; ")),
            ScorePositions::Buckets(b) => {
                Some(format!("relative bias, {} buckets up to distance {}", b.buckets, b.max_distance))
            }
            ScorePositions::Disentangled(d) => {
                let kinds =
                    [("content to position", d.content_to_position), ("position to content", d.position_to_content)];
                let kinds: Vec<_> = kinds.iter().filter(|k| k.1).map(|k| k.0).collect();
                let buckets = d.log_buckets_to.map_or(String::new(), |to| format!(", logarithmic up to {to}"));
                Some(format!("disentangled ({}), {} distances each way{buckets}", kinds.join(", "), d.span))
            }
        };
        let parts: Vec<_> = [learned, relative].into_iter().flatten().collect();
        if parts.is_empty() { "none".to_string() } else { parts.join("; ") }
    }

    fn norm_in_words(&self) -> String {
        let place = match self.norm.place {
            NormPlace::Post => "after each block (post-norm)",
            NormPlace::Pre => "before each block (pre-norm) and after the last layer",
            NormPlace::Both => "before and after each block, and after the last layer",
            NormPlace::Parallel => "before both blocks side by side, and after the last layer",
        };
        format!("{} {place}, eps {:e}", self.norm.kind, self.norm.eps)
    }

    fn attention_in_words(&self) -> String {
        let a = &self.attention;
        let mut text = format!("{} heads of {}", a.heads, a.head_dim);
        if a.kv_heads != a.heads {
            text += &format!(", {} key and value heads", a.kv_heads);
        }
        text += if a.causal { ", causal" } else { ", bidirectional" };
        text += &format!(", scale {}", a.scale);
        if let Some(cap) = a.softcap {
            text += &format!(", scores capped at {cap}");
        }
        if let Some(n) = a.qk_norm {
            text += &format!(", {} of queries and keys", n.kind);
        }
        let windows: Vec<u32> = self.layers.iter().filter_map(|l| l.window).collect();
        if let Some(w) = windows.first() {
            let side = if a.causal { "back" } else { "either side" };
            text += &format!(", {} of {} layers see {w} tokens {side}", windows.len(), self.layers.len());
        }
        text
    }

    fn feed_forward_in_words(&self) -> String {
        let f = &self.feed_forward;
        let gate = if f.gated { ", gated" } else { "" };
        format!("{} features, {}{gate}", f.intermediate_size, f.activation)
    }

    fn head_in_words(&self) -> String {
        match self.head {
            HeadSpec::None => "none: token vectors".to_string(),
            HeadSpec::Classifier { labels, pooling, activation, norm } => {
                let norm = if norm { ", norm" } else { "" };
                format!("{pooling}, dense, {activation}{norm}, linear to {labels} label(s)")
            }
            HeadSpec::CausalLm { softcap } => {
                let cap = softcap.map_or(String::new(), |c| format!(", capped at {c}"));
                format!("next token: linear to {} tokens{cap}", self.embedding.vocab_size)
            }
            HeadSpec::MaskedLm { activation } => {
                format!(
                    "masked language model: dense, {activation}, norm, linear to {} tokens",
                    self.embedding.vocab_size
                )
            }
        }
    }
}
