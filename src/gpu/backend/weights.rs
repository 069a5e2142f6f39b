//! Weight matrices and embedding tables on the device, in the type they are stored in.

use rayon::prelude::*;

use super::args::{STORED_BF16, STORED_F16, STORED_F32, STORED_Q4_0, STORED_Q8_0};
use super::memory::Pool;
use crate::error::{InferError, Result};
use crate::gpu::checks;
use crate::gpu::device::{Binding, Memory};
use crate::weights::{Dtype, Tensor};

/// Columns of the result that a panel holds.
pub(super) const PANEL: usize = 32;

/// Values of a quantised block.
pub(super) const BLOCK: usize = 32;

/// Bytes packed at a time.
const CHUNK_BYTES: usize = 16 << 20;

/// A weight matrix in panels, as kernels/matmul.h and kernels/quantised.h lay them out.
pub(super) struct PanelWeight {
    pub kind: u32,
    pub data: Memory,
    /// Scales of quantised blocks.
    pub scales: Option<Memory>,
}

/// An embedding table in row-major order, as kernels/tokens.h lays it out.
pub(super) struct StoredTable {
    pub kind: u32,
    pub data: Memory,
    pub scales: Option<Memory>,
}

/// How a dtype is held: as it is, or widened.
fn kind_of(dtype: Dtype) -> u32 {
    match dtype {
        Dtype::F16 => STORED_F16,
        Dtype::BF16 => STORED_BF16,
        Dtype::Q8_0 => STORED_Q8_0,
        Dtype::Q4_0 => STORED_Q4_0,
        _ => STORED_F32,
    }
}

/// Bytes of the integers of a block.
fn integer_bytes(kind: u32) -> usize {
    if kind == STORED_Q8_0 { BLOCK } else { BLOCK / 2 }
}

impl PanelWeight {
    /// Stacks tensors [n_i, k]. Tensors of one dtype keep it where kernels compute with it, and f32 was not asked for; all
    /// others are widened.
    pub fn new(pool: &Pool, parts: &[Tensor]) -> Result<Self> {
        let k = parts[0].shape()[1];
        for part in parts {
            part.dtype()?;
            if let Some(at) = part.first_non_finite()? {
                return Err(checks::not_finite(part, at / k.max(1), at % k.max(1)));
            }
        }
        let rows: Vec<(&Tensor, usize)> = parts.iter().flat_map(|t| (0..t.shape()[0]).map(move |r| (t, r))).collect();
        let first = parts[0].dtype()?;
        let one = parts.iter().all(|t| t.dtype().is_ok_and(|d| d == first));
        let as_stored = one && !(first.is_block() && parts.iter().any(Tensor::is_in_f32));
        let kind = if as_stored { kind_of(first) } else { STORED_F32 };
        let panels = panels_of(rows.len(), k)?;
        let panel_bytes = panel_bytes(kind, k);
        let data = pool.fresh(panels * panel_bytes, "packed weights")?;
        upload_panels(pool, &data, panels, panel_bytes, |panel, out| {
            let rows = &rows[panel * PANEL..rows.len().min((panel + 1) * PANEL)];
            rows.iter().enumerate().try_for_each(|(column, (t, r))| pack_row(kind, t, *r, k, column, out))
        })?;
        let scales = match kind {
            STORED_Q8_0 | STORED_Q4_0 => {
                let scale_bytes = k / BLOCK * PANEL * 2;
                let scales = pool.fresh(panels * scale_bytes, "scales of packed weights")?;
                upload_panels(pool, &scales, panels, scale_bytes, |panel, out| {
                    let rows = &rows[panel * PANEL..rows.len().min((panel + 1) * PANEL)];
                    for (column, (t, r)) in rows.iter().enumerate() {
                        for (b, block) in blocks_of(kind, t, *r).enumerate() {
                            out[(b * PANEL + column) * 2..][..2].copy_from_slice(&block[..2]);
                        }
                    }
                    Ok(())
                })?;
                Some(scales)
            }
            _ => None,
        };
        Ok(Self { kind, data, scales })
    }

    /// Memory it takes.
    pub fn bytes(&self) -> usize {
        self.data.bytes() + self.scales.as_ref().map_or(0, Memory::bytes)
    }
}

fn too_big(bytes: usize) -> InferError {
    InferError::OutOfMemory { what: "a matrix of more than 2^32 values".to_string(), bytes }
}

/// The panels of a matrix [rows, k]. Kernels count values in 32 bits, those that fill the last panel up and the 16-bit
/// value after an odd row's last among them.
fn panels_of(rows: usize, k: usize) -> Result<usize> {
    let panels = rows.div_ceil(PANEL);
    let values = checks::size(&[panels, PANEL, k.saturating_add(k % 2)]);
    if values > u32::MAX as usize {
        return Err(too_big(values.saturating_mul(4)));
    }
    Ok(panels)
}

fn panel_bytes(kind: u32, k: usize) -> usize {
    let row = match kind {
        STORED_F32 => k * 4,
        STORED_F16 | STORED_BF16 => k.div_ceil(2) * 4,
        _ => k / BLOCK * integer_bytes(kind),
    };
    row * PANEL
}

/// Packs panels in parallel, some megabytes at a time, and uploads them.
fn upload_panels(
    pool: &Pool,
    memory: &Memory,
    panels: usize,
    panel_bytes: usize,
    fill: impl Fn(usize, &mut [u8]) -> Result<()> + Sync,
) -> Result<()> {
    if panel_bytes == 0 {
        return Ok(());
    }
    let chunk = (CHUNK_BYTES / panel_bytes).max(1);
    for first in (0..panels).step_by(chunk) {
        let mut bytes = vec![0; chunk.min(panels - first) * panel_bytes];
        let parts = bytes.par_chunks_mut(panel_bytes).enumerate();
        parts.try_for_each(|(i, out)| fill(first + i, out))?;
        pool.upload(memory, first * panel_bytes, &bytes)?;
    }
    Ok(())
}

/// The blocks of a row of a quantised tensor.
fn blocks_of(kind: u32, t: &Tensor, row: usize) -> impl Iterator<Item = &[u8]> {
    let stored = t.bytes().len() / t.shape()[0];
    t.bytes()[row * stored..][..stored].chunks_exact(2 + integer_bytes(kind))
}

/// Writes one row of W as a column of its panel.
fn pack_row(kind: u32, t: &Tensor, row: usize, k: usize, column: usize, out: &mut [u8]) -> Result<()> {
    // Word i of a column lies at i * PANEL + column.
    let at = |word: usize| (word * PANEL + column) * 4;
    match kind {
        STORED_F32 => {
            let mut values = vec![0f32; k];
            t.read_f32(row * k, &mut values)?;
            for (i, value) in values.iter().enumerate() {
                out[at(i)..][..4].copy_from_slice(&value.to_ne_bytes());
            }
        }
        STORED_F16 | STORED_BF16 => {
            let halves = &t.bytes()[row * k * 2..][..k * 2];
            for (i, pair) in halves.chunks(4).enumerate() {
                out[at(i)..][..pair.len()].copy_from_slice(pair);
            }
        }
        _ => {
            let words = integer_bytes(kind) / 4;
            for (b, block) in blocks_of(kind, t, row).enumerate() {
                for (i, word) in block[2..].chunks_exact(4).enumerate() {
                    out[at(b * words + i)..][..4].copy_from_slice(word);
                }
            }
        }
    }
    Ok(())
}

impl StoredTable {
    /// Its values and scales; the values stand for scales that are not there.
    pub fn bindings(&self) -> (Binding<'_>, Binding<'_>) {
        let of = |memory| Binding { memory, offset: 0 };
        (of(&self.data), of(self.scales.as_ref().unwrap_or(&self.data)))
    }

    /// A table [rows, cols] in its dtype, or widened where kernels do not read it.
    pub fn new(pool: &Pool, tensor: &Tensor) -> Result<Self> {
        let dtype = tensor.dtype()?;
        if tensor.len() > u32::MAX as usize {
            return Err(too_big(tensor.bytes().len()));
        }
        let kind = kind_of(dtype);
        let what = "an embedding table";
        if matches!(kind, STORED_Q8_0 | STORED_Q4_0) {
            let blocks = || tensor.bytes().chunks_exact(2 + integer_bytes(kind));
            let integers: Vec<u8> = blocks().flat_map(|b| &b[2..]).copied().collect();
            let scales: Vec<u8> = blocks().flat_map(|b| &b[..2]).copied().collect();
            let scales = pool.fresh_with(&padded(&scales), what)?;
            return Ok(Self { kind, data: pool.fresh_with(&integers, what)?, scales: Some(scales) });
        }
        if kind == STORED_F32 && dtype != Dtype::F32 {
            let mut values = vec![0f32; tensor.len()];
            tensor.read_f32(0, &mut values)?;
            let bytes = super::memory::bytes_of(&values, f32::to_ne_bytes);
            return Ok(Self { kind, data: pool.fresh_with(&bytes, what)?, scales: None });
        }
        Ok(Self { kind, data: pool.fresh_with(&padded(tensor.bytes()), what)?, scales: None })
    }
}

/// Whole words: kernels read two 16-bit values at a time.
fn padded(bytes: &[u8]) -> std::borrow::Cow<'_, [u8]> {
    if bytes.len().is_multiple_of(4) {
        return bytes.into();
    }
    let mut whole = bytes.to_vec();
    whole.resize(bytes.len().next_multiple_of(4), 0);
    whole.into()
}

#[cfg(test)]
mod tests {
    use super::{InferError, panels_of};

    /// Padding counts: kernels compute the places of all of a panel's values in 32 bits.
    #[test]
    fn matrices_whose_panels_are_too_large_are_refused() {
        for (rows, k, panels) in [(0, 7, Some(0)), (1, 0, Some(1)), (33, 40, Some(2)), (1 << 20, 4094, Some(1 << 15))] {
            assert_eq!(panels_of(rows, k).ok(), panels, "{rows} x {k}");
        }
        for (rows, k) in [(33, 100_000_000), (1 << 20, 4096), ((1 << 20) - 31, 4095 + 2), (1, usize::MAX)] {
            let refused = panels_of(rows, k);
            assert!(matches!(refused, Err(InferError::OutOfMemory { .. })), "{rows} x {k}: {refused:?}");
        }
    }
}
