//! The forward pass: token ids in, the last layer's token vectors out. T tokens, H features.

use super::BertModel;
use super::positions::Angles;
use super::weights::Layer;
use crate::arch::{LayerSpec, NormPlace, QkNorm};
use crate::batch::PackedBatch;
use crate::error::Result;
use crate::gpu::{
    Activation, AttentionShape, Buffer, Columns, Epilogue, IndexBuffer, KeyWindow, Rope, ScoreBias, Slices,
};

/// Sees named intermediates as they are computed: `embeddings` (what enters the first layer), and for each layer l
/// `layer.l.attn_context` (what enters attention's output projection), `layer.l.attn_norm` (what enters the
/// feed-forward block's residual), `layer.l.ffn_act` (what enters the down projection) and `layer.l.out`.
pub type Observer<'a> = dyn FnMut(&str, &Buffer) -> Result<()> + 'a;

/// Calls the observer, if there is one.
fn show(observer: &mut Option<&mut Observer>, name: impl FnOnce() -> String, buffer: &Buffer) -> Result<()> {
    match observer {
        Some(see) => see(&name(), buffer),
        None => Ok(()),
    }
}

/// What every layer of a pass needs of its batch.
struct Pass<'a> {
    batch: &'a PackedBatch,
    positions: IndexBuffer,
    /// One for each of the model's rotations.
    angles: Vec<Angles>,
}

impl BertModel {
    /// Token vectors of a packed batch, [T, H].
    pub(super) fn hidden(&self, batch: &PackedBatch, mut observer: Option<&mut Observer>) -> Result<Buffer> {
        let compute = self.compute();
        let rotations = self.weights.positions.rotations().iter();
        let angles = rotations.map(|r| r.angles(compute, batch)).collect::<Result<_>>()?;
        let pass = Pass { batch, positions: compute.upload_index(&batch.positions)?, angles };
        let mut x = self.embed(batch)?; // [T, H]
        show(&mut observer, || "embeddings".to_string(), &x)?;
        let first = if self.weights.convolution.is_some() { Some(self.copy(&x)?) } else { None };
        for (l, spec) in self.spec.layers.iter().enumerate() {
            x = self.layer(&pass, spec, l, x, &mut observer)?;
            if let Some(embedded) = first.as_ref().filter(|_| l == 0) {
                self.convolve(&pass, embedded, &mut x)?;
            }
            show(&mut observer, || format!("layer.{l}.out"), &x)?;
        }
        if let Some(norm) = &self.weights.final_norm {
            compute.norm_rows(&mut x, norm.norm())?;
        }
        Ok(x)
    }

    /// The sum of the embeddings, normed and projected as the spec says, [T, H].
    fn embed(&self, batch: &PackedBatch) -> Result<Buffer> {
        let (compute, w, spec) = (self.compute(), &self.weights, &self.spec.embedding);
        let tokens = batch.ids.len();
        let mut x = compute.alloc(tokens * spec.width)?;
        compute.gather(&w.word, &compute.upload_index(&batch.ids)?, false, &mut x)?;
        if let Some(table) = &w.token_type {
            compute.gather(table, &compute.upload_index(&batch.type_ids)?, true, &mut x)?;
        }
        if let (Some(table), Some(learned)) = (&w.position, spec.positions) {
            let rows = batch.position_rows(learned.numbering);
            compute.gather(table, &compute.upload_index(&rows)?, true, &mut x)?;
        }
        let norm = |x: &mut Buffer| match &w.embedding_norm {
            Some(norm) => compute.norm_rows(x, norm.norm()),
            None => Ok(()),
        };
        if !spec.norm_projected {
            norm(&mut x)?;
        }
        if let Some(projection) = &w.embedding_projection {
            x = projection.run(compute, &x, tokens, Activation::Identity)?;
        }
        if spec.norm_projected {
            norm(&mut x)?;
        }
        Ok(x)
    }

    /// One layer: attention and the feed-forward block, each with its residual and norm.
    fn layer(
        &self,
        pass: &Pass,
        spec: &LayerSpec,
        index: usize,
        x: Buffer,
        observer: &mut Option<&mut Observer>,
    ) -> Result<Buffer> {
        let (compute, w) = (self.compute(), &self.weights.layers[spec.weights]);
        let tokens = pass.batch.ids.len();
        let name = |part: &str| format!("layer.{index}.{part}");
        let post = self.spec.norm.place == NormPlace::Post;

        let normed = if post { None } else { self.normed(&x, w.attn_norm.as_ref())? };
        let context = self.attention(pass, spec, w, normed.as_ref().unwrap_or(&x))?; // [T, heads * head_dim]
        show(observer, || name("attn_context"), &context)?;

        let mut a = compute.alloc(x.len())?; // [T, H]
        let (out, bias) = (&w.attn_out.weight, w.attn_out.bias.as_ref());
        match (&w.attn_inner_norm, &w.attn_norm) {
            (Some(inner), Some(norm)) if post => {
                compute.linear_add_norm(&context, tokens, out, bias, &x, inner.norm(), &mut a)?;
                compute.add(&mut a, &x)?;
                compute.norm_rows(&mut a, norm.norm())?;
            }
            (_, Some(norm)) if post => compute.linear_add_norm(&context, tokens, out, bias, &x, norm.norm(), &mut a)?,
            _ => compute.matmul(
                &context,
                tokens,
                out,
                Epilogue { bias, residual: Some(&x), ..Epilogue::NONE },
                &mut a,
            )?,
        }
        show(observer, || name("attn_norm"), &a)?;
        drop((context, normed));

        let normed = if post { None } else { self.normed(&a, Some(&w.ffn_norm))? };
        let inner = self.feed_forward(w, normed.as_ref().unwrap_or(&a), tokens)?; // [T, I]
        show(observer, || name("ffn_act"), &inner)?;

        let mut y = x; // its values are spent
        let (down, bias) = (&w.ffn_down.weight, w.ffn_down.bias.as_ref());
        if post {
            compute.linear_add_norm(&inner, tokens, down, bias, &a, w.ffn_norm.norm(), &mut y)?;
        } else {
            compute.matmul(&inner, tokens, down, Epilogue { bias, residual: Some(&a), ..Epilogue::NONE }, &mut y)?;
        }
        Ok(y)
    }

    /// Self-attention before its output projection, [T, heads * head_dim].
    fn attention(&self, pass: &Pass, spec: &LayerSpec, w: &Layer, x: &Buffer) -> Result<Buffer> {
        let (compute, attention) = (self.compute(), &self.spec.attention);
        let (tokens, dim) = (pass.batch.ids.len(), attention.head_dim);
        let (q, kv) = (attention.heads * dim, attention.kv_heads * dim);
        let stride = q + 2 * kv;
        let mut qkv = w.qkv.run(compute, x, tokens, Activation::Identity)?; // [T, q + 2 kv]
        let norms = [(&w.q_norm, 0, attention.heads), (&w.k_norm, q, attention.kv_heads)];
        for (norm, first, heads) in norms {
            if let (Some(norm), Some(QkNorm { per_head, .. })) = (norm, attention.qk_norm) {
                let slices = Slices { first, count: if per_head { heads } else { 1 }, stride };
                compute.norm(&mut qkv, slices, norm.norm())?;
            }
        }
        if let Some(angles) = pass.angles.get(spec.rope) {
            self.rotate(&mut qkv, spec.rope, angles)?;
        }
        let reach = spec.window.map_or(KeyWindow::ALL, |w| KeyWindow { behind: w, ahead: w });
        let bias: ScoreBias = self.weights.positions.bias(w);
        let shape = AttentionShape {
            segments: &pass.batch.segments,
            heads: attention.heads,
            kv_heads: attention.kv_heads,
            head_dim: dim,
            scale: attention.scale,
            positions: &pass.positions,
            bias,
            window: reach,
            softcap: None,
        };
        let part = |first: usize| Columns { buffer: &qkv, first, stride };
        let mut context = compute.alloc(tokens * q)?;
        compute.attention(part(0), part(q), part(q + kv), &shape, &mut context)?;
        Ok(context)
    }

    /// Rotates queries and keys, which lie side by side.
    fn rotate(&self, qkv: &mut Buffer, index: usize, angles: &Angles) -> Result<()> {
        let attention = &self.spec.attention;
        let spec = self.weights.positions.rotations()[index].spec();
        let heads = attention.heads + attention.kv_heads;
        let rope = Rope {
            cos: angles.cos(),
            sin: angles.sin(),
            positions: angles.rows(),
            first: 0,
            stride: (heads + attention.kv_heads) * attention.head_dim,
            heads,
            head_dim: attention.head_dim,
            rotary_dim: spec.rotary_dim,
            layout: spec.layout,
        };
        self.compute().rope(qkv, &rope)
    }

    /// The feed-forward block before its down projection, [T, I].
    fn feed_forward(&self, w: &Layer, x: &Buffer, tokens: usize) -> Result<Buffer> {
        let (compute, spec) = (self.compute(), &self.spec.feed_forward);
        let Some(gate) = &w.ffn_gate else { return w.ffn_up.run(compute, x, tokens, spec.activation) };
        let mut inner = compute.alloc(tokens * spec.intermediate_size)?;
        let (gate, up) = ((&gate.weight, gate.bias.as_ref()), (&w.ffn_up.weight, w.ffn_up.bias.as_ref()));
        compute.gated_ffn(x, tokens, gate, up, spec.activation, &mut inner)?;
        Ok(inner)
    }

    /// norm(x + act(conv(embeddings))) in place of the first layer's output x.
    fn convolve(&self, pass: &Pass, embedded: &Buffer, x: &mut Buffer) -> Result<()> {
        let (Some(w), Some(spec)) = (&self.weights.convolution, self.spec.convolution) else { return Ok(()) };
        let (compute, width, tokens) = (self.compute(), self.spec.hidden_size, pass.batch.ids.len());
        let mut unfolded = compute.alloc(tokens * spec.taps * width)?;
        compute.unfold(embedded, width, &pass.batch.segments, &pass.positions, spec.taps, &mut unfolded)?;
        let out = w.kernel.run(compute, &unfolded, tokens, spec.activation)?;
        compute.add(x, &out)?;
        compute.norm_rows(x, w.norm.norm())
    }

    /// A normed copy, where there is a norm.
    fn normed(&self, x: &Buffer, norm: Option<&super::weights::NormWeights>) -> Result<Option<Buffer>> {
        let Some(norm) = norm else { return Ok(None) };
        let mut copy = self.copy(x)?;
        self.compute().norm_rows(&mut copy, norm.norm())?;
        Ok(Some(copy))
    }

    fn copy(&self, x: &Buffer) -> Result<Buffer> {
        let mut copy = self.compute().alloc(x.len())?;
        self.compute().copy_rows(x, self.spec.hidden_size, 0, &mut copy)?;
        Ok(copy)
    }
}
