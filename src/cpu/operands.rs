//! Operands of the backend's operations as host slices, checked.

use std::ops::Range;

use super::attention::View;
use super::memory::PooledBuf;
use super::scores::{Bias, Shape};
use crate::error::{InferError, Result};
use crate::gpu::{AttentionShape, Buffer, Columns, IndexBuffer, ScoreBias, Segments};

pub(super) fn expect(operation: &str, what: &str, found: usize, needed: usize) -> Result<()> {
    if found >= needed {
        return Ok(());
    }
    Err(InferError::InvalidArgument(format!("{operation}: {what} holds {found} values, {needed} are needed")))
}

/// A matrix of rows `cols` wide, and nothing left over.
pub(super) fn whole_rows(operation: &str, len: usize, cols: usize) -> Result<()> {
    if cols > 0 && len.is_multiple_of(cols) {
        return Ok(());
    }
    Err(InferError::InvalidArgument(format!("{operation}: {len} values are not whole rows of {cols}")))
}

/// A product of sizes; one beyond the range counts as the largest there is, which no buffer holds.
pub(super) fn size(factors: &[usize]) -> usize {
    factors.iter().fold(1, |product: usize, factor| product.saturating_mul(*factor))
}

/// The end of `len` values from `first` on; likewise.
pub(super) fn end(first: usize, len: usize) -> usize {
    first.saturating_add(len)
}

pub(super) fn ascending(operation: &str, positions: &[u32], segments: &Segments) -> Result<()> {
    if segments.iter().all(|r| positions[r].is_sorted_by(|a, b| a < b)) {
        return Ok(());
    }
    Err(InferError::InvalidArgument(format!("{operation}: positions do not ascend in a sequence")))
}

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
    if s.head_dim == 0 || s.heads == 0 || s.kv_heads == 0 || !s.heads.is_multiple_of(s.kv_heads) {
        return Err(InferError::InvalidArgument(format!(
            "attention: {} query heads of {} features cannot share {} key heads",
            s.heads, s.head_dim, s.kv_heads
        )));
    }
    expect("attention", "the positions", s.positions.len(), s.segments.total())?;
    let positions = indices(s.positions)?;
    let segments: Vec<Range<usize>> = s.segments.iter().collect();
    ascending("attention", positions, s.segments)?;
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
    let rows = s.segments.total();
    let end = end(c.first, size(&[heads, s.head_dim]));
    if end > c.stride {
        return Err(InferError::InvalidArgument(format!("attention: {what} ends past the matrix' width")));
    }
    let needed = if rows == 0 { 0 } else { size(&[rows - 1, c.stride]).saturating_add(end) };
    expect("attention", what, c.buffer.len(), needed)?;
    Ok(View { data: host(c.buffer)?, first: c.first, stride: c.stride })
}

/// The score bias over host slices, checked.
fn bias<'a>(s: &AttentionShape<'a>) -> Result<Bias<'a>> {
    let span = |reach: usize| reach.checked_mul(2).and_then(|r| r.checked_add(1)).unwrap_or(usize::MAX);
    Ok(match s.bias {
        ScoreBias::None => Bias::None,
        ScoreBias::Alibi { slopes } => {
            expect("attention", "the slopes", slopes.len(), s.heads)?;
            Bias::Alibi(host(slopes)?)
        }
        ScoreBias::Distance { table, reach } => {
            expect("attention", "the distance table", table.len(), s.heads.saturating_mul(span(reach)))?;
            Bias::Distance { table: host(table)?, reach }
        }
        ScoreBias::Disentangled(d) => {
            expect("attention", "the map of distances", d.map.len(), span(d.reach))?;
            let map = indices(d.map)?;
            if !map[..span(d.reach)].is_sorted() {
                return Err(InferError::InvalidArgument("attention: the map of distances descends".to_string()));
            }
            let table = |t: Option<&'a Buffer>| match t {
                Some(t) => {
                    expect("attention", "a position table", t.len(), size(&[d.map.bound(), s.heads, s.head_dim]))?;
                    host(t).map(Some)
                }
                None => Ok(None),
            };
            Bias::Disentangled {
                map,
                reach: d.reach,
                keys: table(d.position_keys)?,
                queries: table(d.position_queries)?,
            }
        }
    })
}
