//! The forward pass: token ids in, the last layer's token vectors out. T tokens, H features.

use super::BertModel;
use super::weights::Layer;
use crate::batch::PackedBatch;
use crate::error::Result;
use crate::gpu::{Alibi, AttentionShape, Buffer, Columns, Epilogue};

/// Sees named intermediates as they are computed: `embeddings`, and for each layer l `layer.l.attn_context`,
/// `layer.l.attn_norm`, `layer.l.ffn_act` and `layer.l.out`.
pub type Observer<'a> = dyn FnMut(&str, &Buffer) -> Result<()> + 'a;

/// Calls the observer, if there is one.
fn show(observer: &mut Option<&mut Observer>, name: impl FnOnce() -> String, buffer: &Buffer) -> Result<()> {
    match observer {
        Some(see) => see(&name(), buffer),
        None => Ok(()),
    }
}

impl BertModel {
    /// Token vectors of a packed batch, [T, H].
    pub(super) fn hidden(&self, batch: &PackedBatch, mut observer: Option<&mut Observer>) -> Result<Buffer> {
        let compute = self.compute();
        let positions = compute.upload_index(&batch.positions)?;
        let alibi = self.weights.slopes.as_ref().map(|slopes| Alibi { slopes, positions: &positions });
        let attention = &self.spec.attention;
        let shape = AttentionShape {
            segments: &batch.segments,
            heads: attention.heads,
            kv_heads: attention.heads,
            head_dim: attention.head_dim,
            scale: attention.scale,
            alibi,
        };
        let mut x = self.embed(batch)?; // [T, H]
        show(&mut observer, || "embeddings".to_string(), &x)?;
        for (l, layer) in self.weights.layers.iter().enumerate() {
            x = self.layer(layer, l, &x, &shape, &mut observer)?;
        }
        Ok(x)
    }

    /// norm(word + token type + position), [T, H].
    fn embed(&self, batch: &PackedBatch) -> Result<Buffer> {
        let (compute, w) = (self.compute(), &self.weights);
        let mut x = compute.alloc(batch.ids.len() * self.spec.hidden_size)?;
        compute.gather(&w.word, &compute.upload_index(&batch.ids)?, false, &mut x)?;
        compute.gather(&w.token_type, &compute.upload_index(&batch.type_ids)?, true, &mut x)?;
        if let Some(table) = &w.position {
            compute.gather(table, &compute.upload_index(&batch.positions)?, true, &mut x)?;
        }
        compute.layer_norm(&mut x, &w.norm.gamma, Some(&w.norm.beta), self.spec.norm.eps)?;
        Ok(x)
    }

    /// One post-norm layer: a = norm(x + attention(x)); norm(a + ffn(a)).
    fn layer(
        &self,
        w: &Layer,
        index: usize,
        x: &Buffer,
        shape: &AttentionShape,
        observer: &mut Option<&mut Observer>,
    ) -> Result<Buffer> {
        let (compute, eps) = (self.compute(), self.spec.norm.eps);
        let (tokens, h) = (shape.segments.total(), self.spec.hidden_size);
        let name = |part: &str| format!("layer.{index}.{part}");

        let mut qkv = compute.alloc(tokens * 3 * h)?; // [T, 3H]
        compute.matmul(x, tokens, &w.qkv.weight, Epilogue { bias: Some(&w.qkv.bias), ..Epilogue::NONE }, &mut qkv)?;
        let part = |i: usize| Columns { buffer: &qkv, first: i * h, stride: 3 * h };
        let mut context = compute.alloc(tokens * h)?; // [T, H]
        compute.attention(part(0), part(1), part(2), shape, &mut context)?;
        show(observer, || name("attn_context"), &context)?;

        let mut a = compute.alloc(tokens * h)?; // [T, H]
        let norm = (&w.attn_norm.gamma, Some(&w.attn_norm.beta), eps);
        compute.linear_add_norm(&context, tokens, &w.attn_out.weight, Some(&w.attn_out.bias), x, norm, &mut a)?;
        show(observer, || name("attn_norm"), &a)?;

        let ffn = &self.spec.feed_forward;
        let mut inner = compute.alloc(tokens * ffn.intermediate_size)?; // [T, I]
        let up = Epilogue { bias: Some(&w.ffn_up.bias), activation: ffn.activation, residual: None };
        compute.matmul(&a, tokens, &w.ffn_up.weight, up, &mut inner)?;
        show(observer, || name("ffn_act"), &inner)?;

        let mut out = context; // its values are spent
        let norm = (&w.ffn_norm.gamma, Some(&w.ffn_norm.beta), eps);
        compute.linear_add_norm(&inner, tokens, &w.ffn_down.weight, Some(&w.ffn_down.bias), &a, norm, &mut out)?;
        show(observer, || name("out"), &out)?;
        Ok(out)
    }
}
