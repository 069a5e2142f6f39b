//! Pooling of a sequence's token vectors: sums run over tokens ascending, one add (or multiply and add) a token.

use super::table::Kernels;
use crate::gpu::PoolingMode;

/// Pools `tokens`, [len, out.len()], leaving out the first `skip < len`, into `out`. A weighted mean weighs a token by
/// its position among all of them.
pub(super) fn pool(kernels: &Kernels, mode: PoolingMode, tokens: &[f32], skip: usize, out: &mut [f32]) {
    let cols = out.len();
    let tokens = &tokens[skip * cols..];
    let len = tokens.len() / cols;
    let rows = tokens.chunks_exact(cols);
    match mode {
        PoolingMode::Cls => out.copy_from_slice(&tokens[..cols]),
        PoolingMode::LastToken => out.copy_from_slice(&tokens[(len - 1) * cols..]),
        PoolingMode::Max => {
            out.copy_from_slice(&tokens[..cols]);
            for row in rows.skip(1) {
                for (o, x) in out.iter_mut().zip(row) {
                    // A NaN on either side stays: it is reported, never dropped.
                    *o = if *x > *o || x.is_nan() { *x } else { *o };
                }
            }
        }
        PoolingMode::Mean | PoolingMode::MeanSqrtLen => {
            out.fill(0.0);
            rows.for_each(|row| kernels.add(out, row));
            let divisor = if mode == PoolingMode::Mean { len as f32 } else { (len as f32).sqrt() };
            out.iter_mut().for_each(|o| *o /= divisor);
        }
        PoolingMode::WeightedMean => {
            out.fill(0.0);
            let mut total = 0f32;
            for (i, row) in rows.enumerate() {
                let weight = (skip + i + 1) as f32;
                total += weight;
                out.iter_mut().zip(row).for_each(|(o, x)| *o += *x * weight);
            }
            out.iter_mut().for_each(|o| *o /= total);
        }
    }
}
