//! Linear layers: kernels/matmul.h and kernels/quantised.h, and the choice of a kernel by the shape. No choice shows in a
//! result: every kernel has the contract's chains.

use super::args::*;
use super::rows::activation_number;
use super::weights::{BLOCK, PANEL, PanelWeight};
use super::{DeviceCompute, at, out, word};
use crate::error::Result;
use crate::gpu::device::Binding;
use crate::gpu::{Buffer, Epilogue, Weight};

/// Most rows that take the kernels for a few rows.
const FEW_ROWS: usize = 8;

/// SIMD groups that share a panel's chains.
const MOST_SLOTS: usize = 8;

/// A chain's values of k.
const CHAIN: usize = 512;

/// Kernels of one stored type: tiles of 64 and of 128, one row, four rows.
fn kernels_of(kind: u32) -> [&'static str; 4] {
    match kind {
        STORED_F16 => ["matmul64_f16", "matmul128_f16", "matvec1_f16", "matvec4_f16"],
        STORED_BF16 => ["matmul64_bf16", "matmul128_bf16", "matvec1_bf16", "matvec4_bf16"],
        STORED_Q8_0 => ["matmul64_q8_0", "", "matvec1_q8_0", "matvec4_q8_0"],
        STORED_Q4_0 => ["matmul64_q4_0", "", "matvec1_q4_0", "matvec4_q4_0"],
        _ => ["matmul64_f32", "matmul128_f32", "matvec1_f32", "matvec4_f32"],
    }
}

impl DeviceCompute {
    pub(super) fn multiply(
        &self,
        x: &Buffer,
        rows: usize,
        weight: &Weight,
        e: &Epilogue,
        to: &mut Buffer,
    ) -> Result<()> {
        let (n, k, stored) = (weight.n(), weight.k(), weight.storage::<PanelWeight>()?);
        let (x, to) = (at(x)?, out(to)?);
        if rows == 0 || n == 0 {
            return Ok(());
        }
        let [bias, factor, residual] = [e.bias, e.factor, e.residual].map(|o| o.map(at).transpose());
        let (bias, factor, residual) = (bias?, factor?, residual?);
        let flag = |there: bool, flag: u32| if there { flag } else { 0 };
        let slots = k.div_ceil(CHAIN).clamp(1, MOST_SLOTS);
        let args = MatmulArgs {
            rows: word(rows),
            n: word(n),
            k: word(k),
            slots: word(slots),
            flags: flag(bias.is_some(), MATMUL_BIAS)
                | flag(factor.is_some(), MATMUL_FACTOR)
                | flag(residual.is_some(), MATMUL_RESIDUAL),
            activation: activation_number(e.activation),
        };
        let [tile64, tile128, one, four] = kernels_of(stored.kind);
        // Large tiles use memory best, where there are enough of them to keep the device busy.
        let tiles = |size: usize| rows.div_ceil(size) * n.div_ceil(size);
        let (kernel, grid, threads) = if rows <= FEW_ROWS {
            let (kernel, height) = if rows == 1 { (one, 1) } else { (four, 4) };
            (kernel, [n.div_ceil(PANEL), rows.div_ceil(height), 1], [PANEL as u32, slots as u32, 1])
        } else if !tile128.is_empty() && rows > 64 && tiles(128) >= self.units {
            (tile128, [rows.div_ceil(128), n.div_ceil(128), 1], [256, 1, 1])
        } else {
            (tile64, [rows.div_ceil(64), n.div_ceil(64), 1], [256, 1, 1])
        };
        let data = Binding { memory: &stored.data, offset: 0 };
        // An operand that is absent is bound to one that is there, and not read.
        let [bias, factor, residual] = [bias, factor, residual].map(|o| o.unwrap_or(x));
        match &stored.scales {
            None => self.launch(kernel, grid, threads, &[x, data, bias, factor, residual, to], &args),
            Some(scales) => {
                let blocks = rows * (k / BLOCK);
                let q = self.pool.take(blocks * BLOCK, "quantised activations")?;
                let d = self.values(blocks)?;
                let (q, d, scales) = (q.binding(), d.binding(), Binding { memory: scales, offset: 0 });
                let count = CountArgs { count: word(blocks) };
                self.launch("quantise_blocks", [blocks.div_ceil(256), 1, 1], [256, 1, 1], &[x, q, d], &count)?;
                self.launch(kernel, grid, threads, &[q, d, data, scales, bias, factor, residual, to], &args)
            }
        }
    }
}
