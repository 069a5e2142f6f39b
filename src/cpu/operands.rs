//! Operands of the backend's operations as host slices, checked.

use std::ops::Range;

use super::attention::View;
use super::memory::PooledBuf;
use super::scores::{Bias, Shape};
use crate::error::Result;
use crate::gpu::{AttentionShape, Buffer, Columns, IndexBuffer, ScoreBias, checks};

pub(super) fn host(b: &Buffer) -> Result<&[f32]> {
    b.storage::<PooledBuf>().map(|p| &**p)
}

pub(super) fn host_mut(b: &mut Buffer) -> Result<&mut [f32]> {
    b.storage_mut::<PooledBuf>().map(|p| &mut **p)
}

pub(super) fn indices(b: &IndexBuffer) -> Result<&[u32]> {
    b.storage::<Vec<u32>>().map(Vec::as_slice)
}

/// The shape over host slices, checked, and its sequences.
pub(super) fn shape<'a>(s: &AttentionShape<'a>) -> Result<(Shape<'a>, Vec<Range<usize>>)> {
    let map = match s.bias {
        ScoreBias::Disentangled(d) => Some(indices(d.map)?),
        _ => None,
    };
    let positions = indices(s.positions)?;
    checks::attention(s, positions, map)?;
    let segments: Vec<Range<usize>> = s.segments.iter().collect();
    let shape = Shape {
        heads: s.heads,
        kv_heads: s.kv_heads,
        head_dim: s.head_dim,
        scale: s.scale,
        positions,
        bias: bias(s)?,
        window: s.window,
        softcap: s.softcap,
    };
    Ok((shape, segments))
}

/// The view of `heads` heads over all rows of the batch, checked.
pub(super) fn view<'a>(what: &str, c: Columns<'a>, heads: usize, s: &AttentionShape) -> Result<View<'a>> {
    checks::heads(what, c, heads, s)?;
    Ok(View { data: host(c.buffer)?, first: c.first, stride: c.stride })
}

/// The score bias over host slices.
fn bias<'a>(s: &AttentionShape<'a>) -> Result<Bias<'a>> {
    Ok(match s.bias {
        ScoreBias::None => Bias::None,
        ScoreBias::Alibi { slopes } => Bias::Alibi(host(slopes)?),
        ScoreBias::Distance { table, reach } => Bias::Distance { table: host(table)?, reach },
        ScoreBias::Disentangled(d) => Bias::Disentangled {
            map: indices(d.map)?,
            reach: d.reach,
            keys: d.position_keys.map(host).transpose()?,
            queries: d.position_queries.map(host).transpose()?,
        },
    })
}
