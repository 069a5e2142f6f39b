//! The kernel table: one entry an operation, one instance an instruction set, behind safe methods.

use super::blocks::kernel::Panel;
use super::gemm;
use super::simd::PANEL;
use crate::gpu::Activation;

/// The row and matrix kernels of one instruction set. An instance reaches callers only through
/// `dispatch.rs`, after the CPU was asked: that is what makes the methods safe.
pub struct Kernels {
    pub(super) name: &'static str,
    pub(super) raw: Raw,
}

/// A row that an operation may go without.
type OptionalRow<'a> = Option<&'a [f32]>;

/// What a linear layer does to a row of its result: act(x + bias) * factor + residual.
#[derive(Clone, Copy)]
pub struct Finish<'a> {
    /// Added first.
    pub bias: Option<&'a [f32]>,
    /// Applied to the biased value.
    pub activation: Activation,
    /// Multiplied with the activation's result.
    pub factor: Option<&'a [f32]>,
    /// Added last.
    pub residual: Option<&'a [f32]>,
}

/// One row over panels of blocks.
pub(super) type BlockRow = unsafe fn(&gemm::Block<Panel>);

/// The entries. Each needs a CPU with the table's instruction set; lengths are the safe methods' concern.
pub(super) struct Raw {
    pub tile_rows: usize,
    pub tile_panels: usize,
    pub wide_panels: usize,
    pub activation: unsafe fn(Activation, &mut [f32]),
    pub exp: unsafe fn(&mut [f32]),
    pub finish: unsafe fn(&mut [f32], &Finish),
    pub add: unsafe fn(&mut [f32], &[f32]),
    pub mul: unsafe fn(&mut [f32], &[f32]),
    pub dot: unsafe fn(&[f32], &[f32]) -> f32,
    pub softmax: unsafe fn(&mut [f32], f32, Option<&[f32]>),
    pub softmax_rows: unsafe fn(*mut f32, [usize; 3], f32),
    pub layer_norm: unsafe fn(&mut [f32], &[f32], OptionalRow, f32),
    pub rms_norm: unsafe fn(&mut [f32], &[f32], f32),
    pub l2_normalize: unsafe fn(&mut [f32]),
    pub pack_columns: unsafe fn(Matrix, usize, usize, *mut f32),
    pub pack_rows: unsafe fn(Matrix, usize, usize, *mut f32),
    pub block: unsafe fn(&gemm::Block),
    /// Over panels of binary16 and of bfloat16, at most [`gemm::HALF_ROWS`] rows.
    pub f16_block: unsafe fn(&gemm::Block<u16>),
    pub bf16_block: unsafe fn(&gemm::Block<u16>),
    /// Of one row, over panels of blocks alike: by whether words hold nibbles, and whether there are minima.
    pub block_row: [[BlockRow; 2]; 2],
    /// The first so many k of a panel of blocks as f32 values.
    pub widen: unsafe fn(&Panel, usize, *mut f32),
}

/// Stamps the generic kernels for one vector type; the string lists the target features they are compiled with.
macro_rules! kernel_table {
    ($name:literal, $($features:literal,)? $vector:ty, $tile_rows:expr, $tile_panels:expr, $wide_panels:expr) => {
        /// The table of this instruction set; usable only where the CPU has it.
        pub(super) static KERNELS: crate::cpu::table::Kernels = {
            use crate::cpu::blocks::kernel::{self as blocks, Group, Panel};
            use crate::cpu::rows;
            use crate::cpu::simd::{PANEL, Vector};
            use crate::cpu::table::{row_entry, stamp};
            stamp!(activation($($features)?) = rows::activation::<$vector>;
                (kind: crate::gpu::Activation, x: &mut [f32]));
            stamp!(exp($($features)?) = rows::exp::<$vector>; (x: &mut [f32]));
            stamp!(finish($($features)?) = rows::finish::<$vector>;
                (c: &mut [f32], f: &crate::cpu::table::Finish));
            stamp!(add($($features)?) = rows::add::<$vector>; (x: &mut [f32], y: &[f32]));
            stamp!(mul($($features)?) = rows::mul::<$vector>; (x: &mut [f32], y: &[f32]));
            stamp!(dot($($features)?) = rows::dot::<$vector>; (a: &[f32], b: &[f32]) -> f32);
            stamp!(softmax($($features)?) = crate::cpu::softmax::row::<$vector>;
                (x: &mut [f32], scale: f32, bias: Option<&[f32]>));
            stamp!(softmax_rows($($features)?) = crate::cpu::softmax::rows::<$vector>;
                (x: *mut f32, shape: [usize; 3], scale: f32));
            stamp!(layer_norm($($features)?) = rows::layer_norm::<$vector>;
                (x: &mut [f32], g: &[f32], b: Option<&[f32]>, eps: f32));
            stamp!(rms_norm($($features)?) = rows::rms_norm::<$vector>; (x: &mut [f32], g: &[f32], eps: f32));
            stamp!(l2_normalize($($features)?) = rows::l2_normalize::<$vector>; (x: &mut [f32]));
            stamp!(pack_columns($($features)?) = crate::cpu::pack::columns::<$vector>;
                (m: crate::cpu::table::Matrix, rows: usize, cols: usize, out: *mut f32));
            stamp!(pack_rows($($features)?) = crate::cpu::pack::rows::<$vector>;
                (m: crate::cpu::table::Matrix, rows: usize, cols: usize, out: *mut f32));
            $(#[target_feature(enable = $features)])?
            unsafe fn block(b: &gemm::Block) {
                // SAFETY: forwarded; the tile is asked for no more than its rows and panels.
                unsafe { gemm::block::<$vector, f32>(b, $tile_rows, $tile_panels, $wide_panels, |t| tile(t)) }
            }
            #[inline(always)]
            unsafe fn half_block<H: gemm::Half>(b: &gemm::Block<u16>) {
                // SAFETY: forwarded; the tile is asked for no more than its rows and panels.
                unsafe {
                    let (rows, wide) = (gemm::HALF_ROWS, $wide_panels);
                    gemm::block::<$vector, u16>(b, |_| rows, $tile_panels, wide, |t| half_tile::<H>(t))
                }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn f16_block(b: &gemm::Block<u16>) {
                // SAFETY: forwarded.
                unsafe { half_block::<gemm::F16>(b) }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn bf16_block(b: &gemm::Block<u16>) {
                // SAFETY: forwarded.
                unsafe { half_block::<gemm::Bf16>(b) }
            }
            stamp!(unpack($($features)?) = blocks::unpack::<$vector>; (panel: &Panel, group: usize, out: &mut Group));
            stamp!(widen($($features)?) = blocks::widen::<$vector>; (panel: &Panel, k: usize, out: *mut f32));
            const PER_PANEL: usize = PANEL / <$vector as Vector>::LANES;
            row_entry!(nibble_row($($features)?) = $vector, PER_PANEL, 4, false);
            row_entry!(nibble_minima_row($($features)?) = $vector, PER_PANEL, 4, true);
            row_entry!(byte_row($($features)?) = $vector, PER_PANEL, 8, false);
            row_entry!(byte_minima_row($($features)?) = $vector, PER_PANEL, 8, true);
            crate::cpu::table::Kernels {
                name: $name,
                raw: crate::cpu::table::Raw {
                    tile_rows: $tile_rows($tile_panels),
                    tile_panels: $tile_panels,
                    wide_panels: $wide_panels,
                    activation, exp, finish, add, mul, dot, softmax, softmax_rows, layer_norm, rms_norm, l2_normalize,
                    pack_columns, pack_rows, block, f16_block, bf16_block, widen,
                    block_row: [[byte_row, byte_minima_row], [nibble_row, nibble_minima_row]],
                },
            }
        };
    };
}
pub(super) use kernel_table;

/// One stamped kernel: the generic body, inlined into a function compiled with the features.
macro_rules! stamp {
    ($name:ident($($features:literal)?) = $body:expr; ($($arg:ident: $type:ty),*) $(-> $ret:ty)?) => {
        $(#[target_feature(enable = $features)])?
        unsafe fn $name($($arg: $type),*) $(-> $ret)? {
            // SAFETY: forwarded: the CPU has the features, the lengths were checked.
            unsafe { $body($($arg),*) }
        }
    };
}
pub(super) use stamp;

/// The entry of one row by panels whose words have integers of so many bits, with minima or without.
macro_rules! row_entry {
    ($name:ident($($features:literal)?) = $vector:ty, $per_panel:ident, $field:literal, $minima:literal) => {
        $(#[target_feature(enable = $features)])?
        unsafe fn $name(b: &gemm::Block<Panel>) {
            $(#[target_feature(enable = $features)])?
            #[inline(never)]
            unsafe fn tile(t: &gemm::Tile<Panel>) {
                // SAFETY: forwarded.
                unsafe { blocks::tile::<$vector, $per_panel, $field, $minima>(t, unpack) }
            }
            // SAFETY: forwarded.
            unsafe { blocks::row::<$vector>(b, |t| tile(t)) }
        }
    };
}
pub(super) use row_entry;

/// A read-only matrix view: row r starts at `data[r * stride]`.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a> {
    pub data: &'a [f32],
    pub stride: usize,
}

impl Matrix<'_> {
    /// Panics unless `rows` rows of `cols` values are there.
    fn check(&self, rows: usize, cols: usize) {
        let needed = rows.checked_sub(1).map_or(0, |before| before * self.stride + cols);
        assert!(self.data.len() >= needed, "a matrix of {rows} x {cols} is {} long", self.data.len());
    }
}

impl Kernels {
    /// The instruction set: scalar, avx2, avx512 or neon.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Panels a register tile spans: ranges of panels are best cut at multiples of it.
    pub(crate) fn tile_panels(&self) -> usize {
        self.raw.tile_panels
    }

    /// Panels of a single row that are read side by side.
    pub(crate) fn wide_panels(&self) -> usize {
        self.raw.wide_panels
    }

    /// Rows a register tile spans.
    pub(crate) fn tile_rows(&self) -> usize {
        self.raw.tile_rows
    }

    /// `x[i] = f(x[i])`.
    pub fn activation(&self, kind: Activation, x: &mut [f32]) {
        // SAFETY: the CPU has the table's instruction set.
        unsafe { (self.raw.activation)(kind, x) }
    }

    /// `x[i] = e^x[i]`.
    pub fn exp(&self, x: &mut [f32]) {
        // SAFETY: as above.
        unsafe { (self.raw.exp)(x) }
    }

    /// `x[i] = act(x[i] + bias[i]) + residual[i]`.
    pub fn finish(&self, x: &mut [f32], f: &Finish) {
        let fits = |operand: Option<&[f32]>| operand.is_none_or(|o| o.len() == x.len());
        assert!(fits(f.bias) && fits(f.factor) && fits(f.residual), "finish: operand lengths");
        // SAFETY: as above; the lengths agree.
        unsafe { (self.raw.finish)(x, f) }
    }

    /// `x[i] += y[i]`.
    pub fn add(&self, x: &mut [f32], y: &[f32]) {
        assert_eq!(x.len(), y.len(), "add: lengths");
        // SAFETY: as above; the lengths agree.
        unsafe { (self.raw.add)(x, y) }
    }

    /// `x[i] *= y[i]`.
    pub fn mul(&self, x: &mut [f32], y: &[f32]) {
        assert_eq!(x.len(), y.len(), "mul: lengths");
        // SAFETY: as above; the lengths agree.
        unsafe { (self.raw.mul)(x, y) }
    }

    /// Sum of `a[i] * b[i]` in the contract's order. Panics when the lengths differ.
    pub fn dot(&self, a: &[f32], b: &[f32]) -> f32 {
        assert_eq!(a.len(), b.len(), "dot_product: the slices have {} and {} elements", a.len(), b.len());
        // SAFETY: as above; the lengths agree.
        unsafe { (self.raw.dot)(a, b) }
    }

    /// Softmax of x * scale + bias. An empty row stays empty; a row without a finite maximum becomes NaN.
    pub fn softmax(&self, x: &mut [f32], scale: f32, bias: Option<&[f32]>) {
        assert!(bias.is_none_or(|b| b.len() == x.len()), "softmax: bias length");
        // SAFETY: as above; the lengths agree.
        unsafe { (self.raw.softmax)(x, scale, bias) }
    }

    /// Softmax of x * scale of each row: the first `len` of `stride` values.
    pub fn softmax_rows(&self, x: &mut [f32], len: usize, stride: usize, scale: f32) {
        assert!(len <= stride && stride > 0 && x.len().is_multiple_of(stride), "softmax_rows: lengths");
        // SAFETY: as above; `x` is rows of `stride` values.
        unsafe { (self.raw.softmax_rows)(x.as_mut_ptr(), [x.len() / stride, len, stride], scale) }
    }

    /// LayerNorm of one row.
    pub fn layer_norm(&self, x: &mut [f32], gamma: &[f32], beta: Option<&[f32]>, eps: f32) {
        assert!(gamma.len() == x.len() && beta.is_none_or(|b| b.len() == x.len()), "layer_norm: lengths");
        // SAFETY: as above; the lengths agree.
        unsafe { (self.raw.layer_norm)(x, gamma, beta, eps) }
    }

    /// RMSNorm of one row.
    pub fn rms_norm(&self, x: &mut [f32], gamma: &[f32], eps: f32) {
        assert_eq!(gamma.len(), x.len(), "rms_norm: lengths");
        // SAFETY: as above; the lengths agree.
        unsafe { (self.raw.rms_norm)(x, gamma, eps) }
    }

    /// x / max(|x|, 1e-12).
    pub fn l2_normalize(&self, x: &mut [f32]) {
        // SAFETY: as above.
        unsafe { (self.raw.l2_normalize)(x) }
    }

    /// The first `rows` rows of `m`, each of `cols` values, transposed into panels `[row / 16][column][row % 16]`, missing
    /// rows +0.
    pub(crate) fn pack_columns(&self, m: Matrix, rows: usize, cols: usize, out: &mut [f32]) {
        m.check(rows, cols);
        assert!(out.len() >= rows.next_multiple_of(PANEL) * cols, "pack_columns: the panels are {} long", out.len());
        // SAFETY: as above; the matrix and the panels hold what is touched.
        unsafe { (self.raw.pack_columns)(m, rows, cols, out.as_mut_ptr()) }
    }

    /// The first `rows` rows of `m`, each of `cols` values, in panels `[column / 16][row][column % 16]`, missing columns
    /// +0.
    pub(crate) fn pack_rows(&self, m: Matrix, rows: usize, cols: usize, out: &mut [f32]) {
        m.check(rows, cols);
        assert!(out.len() >= cols.next_multiple_of(PANEL) * rows, "pack_rows: the panels are {} long", out.len());
        // SAFETY: as above; the matrix and the panels hold what is touched.
        unsafe { (self.raw.pack_rows)(m, rows, cols, out.as_mut_ptr()) }
    }

    /// A product of two activations inside attention, by this thread alone.
    ///
    /// # Safety
    /// Rows of `n` values, `ldc` apart, can be written at `c` by this thread alone.
    pub(crate) unsafe fn multiply(&self, p: &Multiply) {
        let panels = p.n.div_ceil(PANEL);
        if p.rows == 0 || p.n == 0 {
            return;
        }
        let k = p.k.len();
        assert!(k > 0, "multiply: no terms");
        p.a.check(p.rows, k);
        assert!(p.b.len() >= (panels - 1) * p.panel_stride + k * PANEL, "multiply: B is {} long", p.b.len());
        let mut start = p.k.start;
        while start < p.k.end {
            let end = ((start / gemm::K_BLOCK + 1) * gemm::K_BLOCK).min(p.k.end);
            let at = start - p.k.start;
            let block = gemm::Block {
                rows: p.rows,
                k: end - start,
                a: p.a.data[at..].as_ptr(),
                lda: p.a.stride,
                b: p.b[at * PANEL..].as_ptr(),
                panel_stride: p.panel_stride,
                panels: 0..panels,
                next: std::ptr::null(),
                c: p.c,
                ldc: p.ldc,
                n: p.n,
                first: at == 0 && !p.accumulate,
                finish: None,
            };
            // SAFETY: the CPU has the table's instruction set; the assertions and the contract cover what it touches.
            unsafe { (self.raw.block)(&block) }
            start = end;
        }
    }
}

/// C[rows, n] = A[rows, k] * B, or += with `accumulate`, over panels `[panel][k][16]`.
pub(crate) struct Multiply<'a> {
    pub rows: usize,
    pub n: usize,
    /// The terms, as numbered by the chain that is cut at multiples of its block length. A and B start at its start.
    pub k: std::ops::Range<usize>,
    pub a: Matrix<'a>,
    pub b: &'a [f32],
    /// Distance between neighbouring panels, in values.
    pub panel_stride: usize,
    pub c: *mut f32,
    pub ldc: usize,
    pub accumulate: bool,
}
