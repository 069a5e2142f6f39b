//! DeBERTa-v2 and -v3 (arXiv 2006.03654, 2111.09543): separate projections, logarithmic buckets of distances, shared
//! projections of positions, a convolution beside the first layer.

use super::bert::after_attention;
use super::deberta::{Terms, body, body_rows, max_relative_positions};
use super::edit::Edit;
use super::keys::{activation, positive, root_scale, unsupported};
use super::{ConvolutionSpec, DisentangledSpec, HeadChoice, ModelSpec, ScorePositions, TensorTable};
use crate::config::BertConfig;
use crate::error::Result;

pub(super) fn describe(c: &BertConfig, head: HeadChoice) -> Result<(ModelSpec, TensorTable)> {
    let mut spec = body(c, head, "deberta-v2")?;
    let head_dim = positive("attention_head_size", c.size("attention_head_size", spec.attention.head_dim)?)?;
    let terms = Terms::read(c)?;
    let counted = usize::from(terms.content_to_position) + usize::from(terms.position_to_content);
    spec.attention.head_dim = head_dim;
    spec.attention.scale = root_scale(head_dim, 1 + counted);
    if c.flag("relative_attention", false)? {
        spec.attention.positions = ScorePositions::Disentangled(disentangled(c, terms)?);
    }
    spec.convolution = convolution(c)?;
    let groups = c.size("conv_groups", 1)?;

    let mut t = TensorTable::new("deberta-v2", &["", "deberta."], "embeddings.word_embeddings.weight");
    body_rows(&mut t, &spec, c.flag("legacy", true)?);
    for l in 0..spec.stored_layers() {
        layer(&mut t, &spec, l);
    }
    if let Some(conv) = spec.convolution {
        let h = spec.hidden_size;
        if groups == 0 || !h.is_multiple_of(groups) {
            return Err(unsupported("conv_groups", groups, &format!("a divisor of hidden_size, {h}")));
        }
        let kernel = t.add("convolution.weight", "encoder.conv.conv.weight", &[h, h / groups, conv.taps]);
        kernel.edit(Edit::Unfolded { groups });
        t.add("convolution.bias", "encoder.conv.conv.bias", &[h]);
        t.norm("convolution_norm", "encoder.conv.LayerNorm", h, true);
    }
    Ok((spec, t))
}

fn disentangled(c: &BertConfig, terms: Terms) -> Result<DisentangledSpec> {
    let reach = max_relative_positions(c)?;
    let buckets = c.integer("position_buckets", -1)?;
    let (span, log_buckets_to) = if buckets > 0 { (buckets as usize, Some(reach)) } else { (reach, None) };
    if log_buckets_to.is_some() && (span < 4 || !span.is_multiple_of(2) || reach <= span / 2 + 1) {
        let expected = format!("an even number, 4 or more, and less than twice max_relative_positions, {reach}");
        return Err(unsupported("position_buckets", span, &expected));
    }
    let norms = c.text("norm_rel_ebd", "none")?.to_lowercase();
    let known = |n: &str| ["none", "layer_norm"].contains(&n.trim());
    if !norms.split('|').all(known) {
        return Err(unsupported("norm_rel_ebd", format!("\"{norms}\""), "none, layer_norm"));
    }
    Ok(DisentangledSpec {
        span,
        log_buckets_to,
        content_to_position: terms.content_to_position,
        position_to_content: terms.position_to_content,
        shared_projections: c.flag("share_att_key", false)?,
        normed: norms.split('|').any(|n| n.trim() == "layer_norm"),
    })
}

fn convolution(c: &BertConfig) -> Result<Option<ConvolutionSpec>> {
    let taps = c.size("conv_kernel_size", 0)?;
    if taps == 0 {
        return Ok(None);
    }
    if taps.is_multiple_of(2) || taps > 1 << 10 {
        return Err(unsupported("conv_kernel_size", taps, "an odd number"));
    }
    let activation = activation("conv_act", c.text("conv_act", "tanh")?)?;
    Ok(Some(ConvolutionSpec { taps, activation }))
}

fn layer(t: &mut TensorTable, s: &ModelSpec, l: usize) {
    let (h, inner) = (s.hidden_size, s.attention.heads * s.attention.head_dim);
    let ours = |part: &str| format!("layer.{l}.{part}");
    let file = |part: &str| format!("encoder.layer.{l}.attention.self.{part}");
    for (part, name) in [("q", "query_proj"), ("k", "key_proj"), ("v", "value_proj")] {
        t.linear(&ours(part), &file(name), (inner, h), true);
    }
    if let ScorePositions::Disentangled(d) = s.attention.positions {
        // Shared projections: positions go through the contents' own.
        let names = if d.shared_projections { ["key_proj", "query_proj"] } else { ["pos_key_proj", "pos_query_proj"] };
        if d.content_to_position {
            t.linear(&ours("position_key"), &file(names[0]), (inner, h), true);
        }
        if d.position_to_content {
            t.linear(&ours("position_query"), &file(names[1]), (inner, h), true);
        }
    }
    after_attention(t, s, l);
}
