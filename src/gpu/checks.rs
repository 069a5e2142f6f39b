//! What every backend checks of an operation's operands before it computes.

use std::ops::Range;

use super::{
    AttentionShape, Buffer, Columns, Epilogue, IndexBuffer, KvStore, Norm, Rope, Segments, Slices, StoredAttention,
    Table, Weight,
};
use crate::error::{InferError, Result};
use crate::weights::Tensor;

pub(crate) fn expect(operation: &str, what: &str, found: usize, needed: usize) -> Result<()> {
    if found >= needed {
        return Ok(());
    }
    Err(InferError::InvalidArgument(format!("{operation}: {what} holds {found} values, {needed} are needed")))
}

/// A matrix of rows `cols` wide, and nothing left over.
pub(crate) fn whole_rows(operation: &str, len: usize, cols: usize) -> Result<()> {
    if cols > 0 && len.is_multiple_of(cols) {
        return Ok(());
    }
    Err(InferError::InvalidArgument(format!("{operation}: {len} values are not whole rows of {cols}")))
}

/// A product of sizes; one beyond the range counts as the largest there is, which no buffer holds.
pub(crate) fn size(factors: &[usize]) -> usize {
    factors.iter().fold(1, |product: usize, factor| product.saturating_mul(*factor))
}

/// The end of `len` values from `first` on; likewise.
pub(crate) fn end(first: usize, len: usize) -> usize {
    first.saturating_add(len)
}

/// Values of a table over the distances -reach..=reach.
pub(crate) fn span(reach: usize) -> usize {
    reach.checked_mul(2).and_then(|r| r.checked_add(1)).unwrap_or(usize::MAX)
}

pub(crate) fn ascending(operation: &str, positions: &[u32], segments: &Segments) -> Result<()> {
    if segments.iter().all(|r| positions[r].is_sorted_by(|a, b| a < b)) {
        return Ok(());
    }
    Err(InferError::InvalidArgument(format!("{operation}: positions do not ascend in a sequence")))
}

/// Matrices of one width, stacked.
pub(crate) fn prepare_weight(parts: &[Tensor]) -> Result<()> {
    let width = |t: &Tensor| if t.shape().len() == 2 { Some(t.shape()[1]) } else { None };
    let first = parts.first().and_then(width);
    if first.is_some() && parts.iter().all(|t| width(t) == first) {
        return Ok(());
    }
    let shapes: Vec<_> = parts.iter().map(|t| format!("{} {:?}", t.name(), t.shape())).collect();
    Err(InferError::InvalidArgument(format!(
        "prepare_weight: matrices of one width are needed, got {}",
        shapes.join(", ")
    )))
}

/// Rows and columns of an embedding table.
pub(crate) fn prepare_table(tensor: &Tensor) -> Result<(usize, usize)> {
    match tensor.shape() {
        [rows, cols] => Ok((*rows, *cols)),
        other => Err(InferError::InvalidArgument(format!(
            "prepare_table: `{}` has shape {other:?}, a matrix is needed",
            tensor.name()
        ))),
    }
}

/// The error of a weight's value that is NaN or infinite.
pub(crate) fn not_finite(t: &Tensor, row: usize, column: usize) -> InferError {
    InferError::TensorError {
        file: t.file().to_path_buf(),
        tensor: t.name().to_string(),
        expected: "finite values".to_string(),
        found: format!("NaN or an infinity at [{row}, {column}]"),
    }
}

pub(crate) fn gather(table: &Table, ids: &IndexBuffer, out: &Buffer) -> Result<()> {
    expect("gather", "the output", out.len(), size(&[ids.len(), table.cols()]))?;
    expect("gather", "the table", table.rows(), ids.bound())
}

pub(crate) fn matmul(x: &Buffer, rows: usize, weight: &Weight, e: &Epilogue, out: &Buffer) -> Result<()> {
    let (n, k) = (weight.n(), weight.k());
    expect("matmul", "the input", x.len(), size(&[rows, k]))?;
    expect("matmul", "the output", out.len(), size(&[rows, n]))?;
    if let Some(bias) = e.bias {
        expect("matmul", "the bias", bias.len(), n)?;
    }
    for (what, operand) in [("the factor", e.factor), ("the residual", e.residual)] {
        if let Some(operand) = operand {
            expect("matmul", what, operand.len(), size(&[rows, n]))?;
        }
    }
    Ok(())
}

pub(crate) fn norm(x: &Buffer, slices: Slices, norm: &Norm) -> Result<()> {
    let (width, Slices { first, count, stride }) = (norm.gamma.len(), slices);
    whole_rows("norm", x.len(), stride)?;
    expect("norm", "a row", stride, end(first, size(&[count, width])))?;
    norm.beta.map_or(Ok(()), |beta| expect("norm", "beta", beta.len(), width))
}

pub(crate) fn rope(x: &Buffer, r: &Rope) -> Result<()> {
    let half = r.rotary_dim / 2;
    if !r.rotary_dim.is_multiple_of(2)
        || r.rotary_dim > r.head_dim
        || end(r.first, size(&[r.heads, r.head_dim])) > r.stride
    {
        return Err(InferError::InvalidArgument(format!(
            "rope: rotary_dim {} of {} heads of {} at column {} does not fit a matrix {} wide",
            r.rotary_dim, r.heads, r.head_dim, r.first, r.stride
        )));
    }
    expect("rope", "the matrix", x.len(), size(&[r.positions.len(), r.stride]))?;
    expect("rope", "the cosine table", r.cos.len(), size(&[r.positions.bound(), half]))?;
    expect("rope", "the sine table", r.sin.len(), size(&[r.positions.bound(), half]))
}

pub(crate) fn copy_rows(x: &Buffer, cols: usize, first: usize, out: &Buffer) -> Result<()> {
    whole_rows("copy_rows", out.len(), cols)?;
    expect("copy_rows", "the input", x.len(), end(size(&[first, cols]), out.len()))
}

pub(crate) fn unfold(
    x: &Buffer,
    cols: usize,
    segments: &Segments,
    positions: &[u32],
    taps: usize,
    out: &Buffer,
) -> Result<()> {
    let rows = segments.total();
    expect("unfold", "the input", x.len(), size(&[rows, cols]))?;
    expect("unfold", "the output", out.len(), size(&[rows, taps, cols]))?;
    expect("unfold", "the positions", positions.len(), rows)?;
    ascending("unfold", positions, segments)
}

pub(crate) fn pool(
    x: &Buffer,
    cols: usize,
    ranges: &Segments,
    skip: usize,
    (out, out_first, out_stride): (&Buffer, usize, usize),
) -> Result<()> {
    expect("pool", "the input", x.len(), size(&[ranges.total(), cols]))?;
    whole_rows("pool", x.len(), cols)?;
    expect("pool", "the output", out.len(), size(&[ranges.len(), out_stride]))?;
    expect("pool", "a row of the output", out_stride, end(out_first, cols))?;
    match (0..ranges.len()).find(|&i| ranges.range(i).len() <= skip) {
        Some(i) => Err(InferError::input(
            i,
            format!("{} tokens, {skip} of them skipped: none left to pool", ranges.range(i).len()),
        )),
        None => Ok(()),
    }
}

pub(crate) fn arg_max(x: &Buffer, cols: usize, among: usize) -> Result<()> {
    whole_rows("arg_max", x.len(), cols)?;
    if among == 0 || among > cols || u32::try_from(among).is_err() {
        return Err(InferError::InvalidArgument(format!("arg_max: the first {among} of {cols} columns")));
    }
    Ok(())
}

/// An attention's shape; `positions` are the shape's, `map` its map of distances.
pub(crate) fn attention(s: &AttentionShape, positions: &[u32], map: Option<&[u32]>) -> Result<()> {
    use super::ScoreBias;
    if s.head_dim == 0 || s.heads == 0 || s.kv_heads == 0 || !s.heads.is_multiple_of(s.kv_heads) {
        return Err(InferError::InvalidArgument(format!(
            "attention: {} query heads of {} features cannot share {} key heads",
            s.heads, s.head_dim, s.kv_heads
        )));
    }
    expect("attention", "the positions", positions.len(), s.segments.total())?;
    ascending("attention", positions, s.segments)?;
    match s.bias {
        ScoreBias::None => Ok(()),
        ScoreBias::Alibi { slopes } => expect("attention", "the slopes", slopes.len(), s.heads),
        ScoreBias::Distance { table, reach } => {
            expect("attention", "the distance table", table.len(), s.heads.saturating_mul(span(reach)))
        }
        ScoreBias::Disentangled(d) => {
            let map = map.unwrap_or_default();
            expect("attention", "the map of distances", map.len(), span(d.reach))?;
            if !map[..span(d.reach)].is_sorted() {
                return Err(InferError::InvalidArgument("attention: the map of distances descends".to_string()));
            }
            let needed = size(&[d.map.bound(), s.heads, s.head_dim]);
            let tables = [d.position_keys, d.position_queries];
            tables.into_iter().flatten().try_for_each(|t| expect("attention", "a position table", t.len(), needed))
        }
    }
}

/// The columns of `heads` heads in all rows of the batch.
pub(crate) fn heads(what: &str, c: Columns, heads: usize, s: &AttentionShape) -> Result<()> {
    let rows = s.segments.total();
    let end = end(c.first, size(&[heads, s.head_dim]));
    if end > c.stride {
        return Err(InferError::InvalidArgument(format!("attention: {what} ends past the matrix' width")));
    }
    let needed = if rows == 0 { 0 } else { size(&[rows - 1, c.stride]).saturating_add(end) };
    expect("attention", what, c.buffer.len(), needed)
}

pub(crate) fn kv_store(kv_heads: usize, head_dim: usize) -> Result<()> {
    if kv_heads == 0 || head_dim == 0 {
        return Err(InferError::InvalidArgument(format!("kv_store: {kv_heads} heads of {head_dim} features")));
    }
    Ok(())
}

pub(crate) fn kv_append(store: &KvStore, k: Columns, v: Columns, rows: &Range<usize>) -> Result<()> {
    let width = size(&[store.kv_heads(), store.head_dim()]);
    for (what, c) in [("the keys", k), ("the values", v)] {
        expect("kv_append", "a row", c.stride, end(c.first, width))?;
        let needed = if rows.is_empty() { 0 } else { end(size(&[rows.end - 1, c.stride]), end(c.first, width)) };
        expect("kv_append", what, c.buffer.len(), needed)?;
    }
    Ok(())
}

pub(crate) fn kv_keep(store: &KvStore, first: usize, len: usize) -> Result<()> {
    if len > store.len() || first > len || first < store.first() {
        let (held_first, held) = (store.first(), store.len());
        return Err(InferError::InvalidArgument(format!(
            "kv_keep: keys {first} to {len} of a store that holds {held_first} to {held}"
        )));
    }
    Ok(())
}

/// The stores of a call, and the query and output where there are any.
pub(crate) fn attend(q: Columns, stores: &[&KvStore], s: &StoredAttention, out: &Buffer) -> Result<()> {
    let wrong = |detail: String| Err(InferError::InvalidArgument(format!("attend: {detail}")));
    if stores.len() != s.segments.len() {
        return wrong(format!("{} stores for {} sequences", stores.len(), s.segments.len()));
    }
    let Some(first) = stores.first() else { return Ok(()) };
    let shape = (first.kv_heads(), first.head_dim());
    for (store, rows) in stores.iter().zip(s.segments.iter()) {
        let (kv_heads, head_dim) = (store.kv_heads(), store.head_dim());
        if shape != (kv_heads, head_dim) || !s.heads.is_multiple_of(kv_heads) || s.heads == 0 {
            return wrong(format!("{} query heads over a store of {kv_heads} heads of {head_dim}", s.heads));
        }
        let needed = (store.len() + 1).saturating_sub(rows.len()).saturating_sub(s.behind as usize + 1);
        if rows.len() > store.len() || store.first() > needed {
            return wrong(format!("{} rows over keys {} to {}", rows.len(), store.first(), store.len()));
        }
    }
    let (rows, width) = (s.segments.total(), size(&[s.heads, shape.1]));
    let needed = if rows == 0 { 0 } else { end(size(&[rows - 1, q.stride]), end(q.first, width)) };
    expect("attend", "a row of the query", q.stride, end(q.first, width))?;
    expect("attend", "the query", q.buffer.len(), needed)?;
    expect("attend", "the output", out.len(), size(&[rows, width]))
}
