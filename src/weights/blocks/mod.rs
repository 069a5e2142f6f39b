//! Blocks of quantised values, as GGML defines them: what their bytes mean, and how values become blocks.
//!
//! A block of [`Dtype::block_len`] values takes [`Dtype::size`] bytes. Scales are binary16, little-endian; `q` are small
//! integers; every operation is in binary32, rounded to nearest. The bits are those of GGML's reference code and of the
//! `gguf` Python package.
//!
//! | type | bytes of a block, in order | value i |
//! |---|---|---|
//! | Q8_0 | d, 32 of q (8 bits, signed) | d q |
//! | Q4_0 | d, 16 bytes of q: value i in the low half of byte i, value i + 16 in the high half | d (q - 8) |
//! | Q4_1 | d, m, 16 bytes of q as in Q4_0 | d q + m |
//! | Q5_0 | d, 4 bytes of q's fifth bits (bit i is value i's), 16 bytes of q's other bits as in Q4_0 | d (q - 16) |
//! | Q5_1 | d, m, then as Q5_0 | d q + m |
//! | Q4_K | d, dmin, 12 bytes of scales, 128 of q | (d s) q - (dmin m), s and m of the group of 32 |
//! | Q5_K | d, dmin, 12 bytes of scales, 32 of q's fifth bits, 128 of q | as Q4_K |
//! | Q6_K | 128 bytes of q's low 4 bits, 64 of its high 2, 16 scales s (8 bits, signed), d | (d s) (q - 32), s of the group of 16 |
//!
//! [`Dtype::Q8_0`] and [`Dtype::Q4_0`] can be written too ([`quantise`]), with x a block's values:
//!
//! ```text
//! Q8_0   d = max |x| / 127                               q = round(x * (1 / d)), halves away from zero
//! Q4_0   d = m / -8, m the first x of the largest |x|    q = min(15, floor(x * (1 / d) + 8.5))
//! ```
//!
//! with 1 / d taken as 0 where d = 0; d is stored rounded to binary16, but divides unrounded. Where 1 / d overflows, no
//! product is finite or all are zero times infinity: those q are 0, as the reference gives on x86, and d is stored as 0.

mod groups;
mod parts;

use half::f16;

use super::Dtype;
use crate::error::{InferError, Result};
use parts::half_at;
pub(crate) use parts::{PART, Part, centre, has_minima};

/// Widens whole blocks into the values they stand for.
///
/// # Errors
/// [`InvalidArgument`](InferError::InvalidArgument) when `dtype` has no blocks, or `bytes` are not exactly the blocks of
/// `out.len()` values.
///
/// ```
/// use kin_infer::weights::{Dtype, blocks};
///
/// let mut bytes = vec![0; 34];
/// blocks::quantise(Dtype::Q8_0, &[0.5; 32], &mut bytes)?;
/// let mut values = [0.0; 32];
/// blocks::dequantise(Dtype::Q8_0, &bytes, &mut values)?;
/// assert!((values[0] - 0.5).abs() < 1e-3);
/// # Ok::<(), kin_infer::InferError>(())
/// ```
pub fn dequantise(dtype: Dtype, bytes: &[u8], out: &mut [f32]) -> Result<()> {
    check_lengths(dtype, bytes.len(), out.len())?;
    for (block, values) in bytes.chunks_exact(dtype.size()).zip(out.chunks_exact_mut(dtype.block_len())) {
        for (index, values) in values.as_chunks_mut().0.iter_mut().enumerate() {
            Part::of(dtype, block, index).values(dtype, values);
        }
    }
    Ok(())
}

/// Turns values into whole blocks of [`Dtype::Q8_0`] or [`Dtype::Q4_0`].
///
/// # Errors
/// [`InvalidArgument`](InferError::InvalidArgument) when `dtype` is another, `out` is not exactly the blocks of the
/// values, or a value is NaN, infinite or so large that its scale overflows binary16; it names the value's index.
pub fn quantise(dtype: Dtype, values: &[f32], out: &mut [u8]) -> Result<()> {
    match try_quantise(dtype, values, out)? {
        None => Ok(()),
        Some(i) => Err(InferError::InvalidArgument(format!("quantise: [{i}] is {}", why_refused(values[i])))),
    }
}

/// As [`quantise`], giving the index of the value that is refused.
pub(crate) fn try_quantise(dtype: Dtype, values: &[f32], out: &mut [u8]) -> Result<Option<usize>> {
    check_lengths(dtype, out.len(), values.len())?;
    match dtype {
        Dtype::Q8_0 => Ok(write_each(values, out, groups::write_q8_0)),
        Dtype::Q4_0 => Ok(write_each(values, out, groups::write_q4_0)),
        other => Err(InferError::InvalidArgument(format!("quantise: only Q8_0 and Q4_0 are written, not {other}"))),
    }
}

/// What is wrong with a value that is refused.
pub(crate) fn why_refused(value: f32) -> String {
    match value.is_finite() {
        true => format!("{value:e}, whose scale overflows binary16"),
        false => format!("{value}, expected finite values"),
    }
}

/// Index of the first block one of whose scales is NaN or infinite.
pub(super) fn first_bad_scale(dtype: Dtype, bytes: &[u8]) -> Option<usize> {
    // Where a block's binary16 scales lie.
    let scales: &[usize] = match dtype {
        Dtype::Q8_0 | Dtype::Q4_0 | Dtype::Q5_0 => &[0],
        Dtype::Q4_1 | Dtype::Q5_1 | Dtype::Q4K | Dtype::Q5K => &[0, 2],
        Dtype::Q6K => &[208],
        Dtype::F32 | Dtype::F16 | Dtype::BF16 => &[],
    };
    let bad = |block: &[u8]| scales.iter().any(|at| !half_at(block, *at).is_finite());
    bytes.chunks_exact(dtype.size()).position(bad)
}

fn check_lengths(dtype: Dtype, bytes: usize, values: usize) -> Result<()> {
    let whole = dtype.is_block() && values.is_multiple_of(dtype.block_len());
    if whole && values / dtype.block_len() * dtype.size() == bytes {
        return Ok(());
    }
    Err(InferError::InvalidArgument(format!("{values} values of type {dtype} are not {bytes} bytes of whole blocks")))
}

/// Runs `write` over blocks of `N` values and `B` bytes; gives the index of the first value that is not finite or makes a
/// scale that is not.
fn write_each<const B: usize, const N: usize>(
    values: &[f32],
    out: &mut [u8],
    write: impl Fn(&[f32; N], &mut [u8; B]) -> f16,
) -> Option<usize> {
    for (block, (values, bytes)) in values.as_chunks().0.iter().zip(out.as_chunks_mut().0).enumerate() {
        if let Some(i) = values.iter().position(|v| !v.is_finite()) {
            return Some(block * N + i);
        }
        if !write(values, bytes).is_finite() {
            return Some(block * N + groups::largest(values.as_slice()));
        }
    }
    None
}
