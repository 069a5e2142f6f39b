//! The forward pass: token ids in, the last layer's token vectors out. T tokens, H features.

use super::BertModel;
use super::positions::Angles;
use super::weights::{Layer, Linear, NormWeights};
use crate::arch::{LayerSpec, NormPlace, QkNorm};
use crate::batch::PackedBatch;
use crate::error::Result;
use crate::gpu::{
    Activation, AttentionShape, Buffer, Columns, Epilogue, IndexBuffer, KeyWindow, KvStore, Rope, ScoreBias, Slices,
    StoredAttention,
};
use crate::watchdog::Phase;

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
pub(super) struct Pass<'a> {
    batch: &'a PackedBatch,
    positions: IndexBuffer,
    /// One for each of the model's rotations.
    angles: Vec<Angles>,
}

/// The stored keys of each sequence of a batch, layer by layer: `stores[sequence][layer]`.
pub(super) type Stores<'a> = [&'a mut Vec<KvStore>];

impl BertModel {
    /// Token vectors of a packed batch, [T, H].
    pub(super) fn hidden(&self, batch: &PackedBatch, observer: Option<&mut Observer>) -> Result<Buffer> {
        self.run_layers(batch, None, observer)
    }

    /// Token vectors of a packed batch, [T, H]. With `stores`, each sequence goes on after its stored keys, and its own
    /// are stored.
    pub(super) fn run_layers(
        &self,
        batch: &PackedBatch,
        mut stores: Option<&mut Stores>,
        mut observer: Option<&mut Observer>,
    ) -> Result<Buffer> {
        self.run.enter_item(Phase::Forward, batch.item, None);
        self.run.check()?;
        let compute = self.compute();
        let rotations = self.weights.positions.rotations().iter();
        let angles = rotations.map(|r| r.angles(compute, batch)).collect::<Result<_>>()?;
        let pass = Pass { batch, positions: compute.upload_index(&batch.positions)?, angles };
        let mut x = self.embed(batch)?; // [T, H]
        show(&mut observer, || "embeddings".to_string(), &x)?;
        let first = if self.weights.convolution.is_some() { Some(self.copy(&x)?) } else { None };
        for (l, spec) in self.spec.layers.iter().enumerate() {
            let _span = tracing::trace_span!("layer", l).entered();
            self.run.enter_item(Phase::Forward, batch.item, Some(l));
            self.run.check()?;
            x = self.layer(&pass, spec, l, x, &mut stores, &mut observer)?;
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
        if let Some(factor) = spec.scale {
            compute.scale(&mut x, factor)?;
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

    /// One layer: attention and the feed-forward block, each with its residual and norms.
    fn layer(
        &self,
        pass: &Pass,
        spec: &LayerSpec,
        index: usize,
        x: Buffer,
        stores: &mut Option<&mut Stores>,
        observer: &mut Option<&mut Observer>,
    ) -> Result<Buffer> {
        let w = &self.weights.layers[spec.weights];
        let name = |part: &str| format!("layer.{index}.{part}");
        let place = self.spec.norm.place;
        let post = |norm| if place == NormPlace::Post { norm } else { None };

        let normed = if place == NormPlace::Post { None } else { self.normed(&x, w.attn_norm.as_ref())? };
        let qkv = self.project(pass, spec, w, normed.as_ref().unwrap_or(&x))?; // [T, q + 2 kv]
        let context = match stores {
            None => self.attention(pass, spec, w, &qkv)?, // [T, heads * head_dim]
            Some(stores) => self.attention_over_stores(pass, spec, index, &qkv, stores)?,
        };
        drop(qkv);
        show(observer, || name("attn_context"), &context)?;

        let inner_norm = w.attn_inner_norm.as_ref();
        let mut a = match post(w.attn_norm.as_ref()) {
            Some(norm) if inner_norm.is_some() => {
                let mut a = self.join(&context, &w.attn_out, &x, None, inner_norm)?;
                self.compute().add(&mut a, &x)?;
                self.compute().norm_rows(&mut a, norm.norm())?;
                a
            }
            norm => self.join(&context, &w.attn_out, &x, w.attn_out_norm.as_ref(), norm)?, // [T, H]
        };
        show(observer, || name("attn_norm"), &a)?;
        drop((context, x));

        let normed = match place {
            NormPlace::Post => None,
            NormPlace::Parallel => normed,
            NormPlace::Pre | NormPlace::Both => self.normed(&a, w.ffn_norm.as_ref())?,
        };
        let inner = self.feed_forward(w, normed.as_ref().unwrap_or(&a), pass.batch.ids.len())?; // [T, I]
        show(observer, || name("ffn_act"), &inner)?;
        drop(normed);
        a = self.join(&inner, &w.ffn_down, &a, w.ffn_out_norm.as_ref(), post(w.ffn_norm.as_ref()))?;
        Ok(a)
    }

    /// The end of a block: `residual + branch(x W^T + bias)`, or `post(residual + x W^T + bias)`, [T, H].
    fn join(
        &self,
        x: &Buffer,
        linear: &Linear,
        residual: &Buffer,
        branch: Option<&NormWeights>,
        post: Option<&NormWeights>,
    ) -> Result<Buffer> {
        let (compute, rows) = (self.compute(), residual.len() / self.spec.hidden_size);
        let (weight, bias) = (&linear.weight, linear.bias.as_ref());
        if let Some(norm) = branch {
            let mut out = linear.run(compute, x, rows, Activation::Identity)?;
            compute.norm_rows(&mut out, norm.norm())?;
            compute.add(&mut out, residual)?;
            return Ok(out);
        }
        let mut out = compute.alloc(residual.len())?;
        match post {
            Some(norm) => compute.linear_add_norm(x, rows, weight, bias, residual, norm.norm(), &mut out)?,
            None => {
                let epilogue = Epilogue { bias, residual: Some(residual), ..Epilogue::NONE };
                compute.matmul(x, rows, weight, epilogue, &mut out)?;
            }
        }
        Ok(out)
    }

    /// Queries, keys and values side by side, normed and rotated as the spec says, [T, q + 2 kv].
    fn project(&self, pass: &Pass, spec: &LayerSpec, w: &Layer, x: &Buffer) -> Result<Buffer> {
        let (compute, attention) = (self.compute(), &self.spec.attention);
        let (q, stride) = (attention.heads * attention.head_dim, w.qkv.weight.n());
        let mut qkv = w.qkv.run(compute, x, pass.batch.ids.len(), Activation::Identity)?;
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
        Ok(qkv)
    }

    /// Self-attention of whole sequences before its output projection, [T, heads * head_dim].
    fn attention(&self, pass: &Pass, spec: &LayerSpec, w: &Layer, qkv: &Buffer) -> Result<Buffer> {
        let (compute, attention) = (self.compute(), &self.spec.attention);
        let (q, kv) = (attention.heads * attention.head_dim, attention.kv_heads * attention.head_dim);
        let reach = spec.window.unwrap_or(u32::MAX);
        let bias: ScoreBias = self.weights.positions.bias(w);
        let shape = AttentionShape {
            segments: &pass.batch.segments,
            heads: attention.heads,
            kv_heads: attention.kv_heads,
            head_dim: attention.head_dim,
            scale: spec.scale.unwrap_or(attention.scale),
            positions: &pass.positions,
            bias,
            window: KeyWindow { behind: reach, ahead: if attention.causal { 0 } else { reach } },
            softcap: attention.softcap,
        };
        let part = |first: usize| Columns { buffer: qkv, first, stride: q + 2 * kv };
        let mut context = compute.alloc(pass.batch.ids.len() * q)?;
        compute.attention(part(0), part(q), part(q + kv), &shape, &mut context)?;
        Ok(context)
    }

    /// Causal self-attention of new tokens over stored keys and their own, which are stored first.
    fn attention_over_stores(
        &self,
        pass: &Pass,
        spec: &LayerSpec,
        index: usize,
        qkv: &Buffer,
        stores: &mut Stores,
    ) -> Result<Buffer> {
        let (compute, attention) = (self.compute(), &self.spec.attention);
        let (q, kv) = (attention.heads * attention.head_dim, attention.kv_heads * attention.head_dim);
        let part = |first: usize| Columns { buffer: qkv, first, stride: q + 2 * kv };
        let segments = &pass.batch.segments;
        for (layers, rows) in stores.iter_mut().zip(segments.iter()) {
            compute.kv_append(&mut layers[index], part(q), part(q + kv), rows)?;
        }
        let shape = StoredAttention {
            segments,
            heads: attention.heads,
            scale: spec.scale.unwrap_or(attention.scale),
            behind: spec.window.unwrap_or(u32::MAX),
            softcap: attention.softcap,
        };
        let mut context = compute.alloc(pass.batch.ids.len() * q)?;
        let of_layer: Vec<&KvStore> = stores.iter().map(|layers| &layers[index]).collect();
        compute.attend(part(0), &of_layer, &shape, &mut context)?;
        if let Some(window) = spec.window {
            for layers in stores.iter_mut() {
                let store = &mut layers[index];
                let (first, len) = (store.len().saturating_sub(window as usize), store.len());
                compute.kv_keep(store, first.max(store.first()), len)?;
            }
        }
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
    fn normed(&self, x: &Buffer, norm: Option<&NormWeights>) -> Result<Option<Buffer>> {
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
