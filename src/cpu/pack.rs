//! Operands of attention's products, copied into the panels that the product kernels read.
//!
//! # Safety
//! Every function here asks the same of its caller: the CPU has V's instruction set, `m` holds `rows` rows of `cols`
//! values, and `out` as many panels as the function writes.

use super::simd::{PANEL, Vector, transpose};
use super::table::Matrix;

/// The transposed matrix in panels `[row / 16][column][row % 16]`; rows that are missing are +0.
#[inline(always)]
pub(super) unsafe fn columns<V: Vector>(m: Matrix, rows: usize, cols: usize, out: *mut f32) {
    let source = m.data.as_ptr();
    for first in (0..rows.next_multiple_of(PANEL)).step_by(V::LANES) {
        let count = rows.saturating_sub(first).min(V::LANES);
        let panel = out.wrapping_add(first / PANEL * cols * PANEL + first % PANEL);
        let mut col = 0;
        // SAFETY: rows from `first`, `count` of them, and columns below `cols` are in the matrix; the panel is in `out`.
        unsafe {
            while col + V::LANES <= cols {
                let mut tile = [V::splat(0.0); PANEL];
                let row = |j: usize| source.add((first + j) * m.stride + col);
                if count == V::LANES {
                    for (j, t) in tile.iter_mut().enumerate().take(V::LANES) {
                        *t = V::load(row(j));
                    }
                } else {
                    for (j, t) in tile.iter_mut().enumerate().take(count) {
                        *t = V::load(row(j));
                    }
                }
                transpose(&mut tile);
                for (j, t) in tile.iter().enumerate().take(V::LANES) {
                    t.store(panel.add((col + j) * PANEL));
                }
                col += V::LANES;
            }
            for col in col..cols {
                for j in 0..V::LANES {
                    let value = if j < count { *source.add((first + j) * m.stride + col) } else { 0.0 };
                    *panel.add(col * PANEL + j) = value;
                }
            }
        }
    }
}

/// The matrix in panels `[column / 16][row][column % 16]`; columns that are missing are +0.
#[inline(always)]
pub(super) unsafe fn rows<V: Vector>(m: Matrix, rows: usize, cols: usize, out: *mut f32) {
    for first in (0..cols).step_by(PANEL) {
        let count = PANEL.min(cols - first);
        let (mut from, mut to) = (m.data.as_ptr().wrapping_add(first), out.wrapping_add(first * rows));
        for _ in 0..rows {
            // SAFETY: `count` columns from `first` are in the matrix; the panel's line is in `out`.
            unsafe {
                for lane in (0..PANEL).step_by(V::LANES) {
                    let v = match count.saturating_sub(lane) {
                        left if left >= V::LANES => V::load(from.add(lane)),
                        0 => V::splat(0.0),
                        left => V::load_part(from.add(lane), left),
                    };
                    v.store(to.add(lane));
                }
            }
            (from, to) = (from.wrapping_add(m.stride), to.wrapping_add(PANEL));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::dispatch;
    use super::*;

    /// Distinct values, a row longer than its columns.
    fn matrix(rows: usize, cols: usize) -> (Vec<f32>, usize) {
        let stride = cols + 3;
        ((0..rows * stride).map(|i| i as f32 - 7.5).collect(), stride)
    }

    #[test]
    fn panels_hold_the_matrix_and_zeros_on_every_instruction_set() {
        for kernels in dispatch::available() {
            for rows in (1..=35).chain([64, 100]) {
                for cols in [1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 40, 64, 80] {
                    let (data, stride) = matrix(rows, cols);
                    let m = Matrix { data: &data[..(rows - 1) * stride + cols], stride };
                    let at = |r: usize, c: usize| if r < rows && c < cols { data[r * stride + c] } else { 0.0 };
                    let what = format!("{} {rows} x {cols}", kernels.name());
                    let mut out = vec![f32::NAN; rows.next_multiple_of(PANEL) * cols];
                    kernels.pack_columns(m, rows, cols, &mut out);
                    for (i, value) in out.iter().enumerate() {
                        let (panel, col, lane) = (i / (cols * PANEL), i / PANEL % cols, i % PANEL);
                        assert_eq!(value.to_bits(), at(panel * PANEL + lane, col).to_bits(), "columns of {what}, {i}");
                    }
                    let mut out = vec![f32::NAN; rows * cols.next_multiple_of(PANEL)];
                    kernels.pack_rows(m, rows, cols, &mut out);
                    for (i, value) in out.iter().enumerate() {
                        let (panel, row, lane) = (i / (rows * PANEL), i / PANEL % rows, i % PANEL);
                        assert_eq!(value.to_bits(), at(row, panel * PANEL + lane).to_bits(), "rows of {what}, {i}");
                    }
                }
            }
        }
    }
}
