//! The kernel table: one entry an operation, one instance an instruction set, behind safe methods.

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

/// The entries. Each needs a CPU with the table's instruction set; lengths are the safe methods' concern.
pub(super) struct Raw {
    pub tile_rows: usize,
    pub tile_panels: usize,
    pub activation: unsafe fn(Activation, &mut [f32]),
    pub exp: unsafe fn(&mut [f32]),
    pub finish: unsafe fn(&mut [f32], OptionalRow, Activation, OptionalRow),
    pub add: unsafe fn(&mut [f32], &[f32]),
    pub mul: unsafe fn(&mut [f32], &[f32]),
    pub dot: unsafe fn(&[f32], &[f32]) -> f32,
    pub softmax: unsafe fn(&mut [f32], f32, Option<&[f32]>),
    pub layer_norm: unsafe fn(&mut [f32], &[f32], OptionalRow, f32),
    pub rms_norm: unsafe fn(&mut [f32], &[f32], f32),
    pub l2_normalize: unsafe fn(&mut [f32]),
    pub block: unsafe fn(&gemm::Block),
}

/// Stamps the generic kernels for one vector type; the string lists the target features they are compiled with.
macro_rules! kernel_table {
    ($name:literal, $($features:literal,)? $vector:ty, $tile_rows:expr, $tile_panels:expr) => {
        /// The table of this instruction set; usable only where the CPU has it.
        pub(super) static KERNELS: crate::cpu::table::Kernels = {
            use crate::cpu::rows;
            use crate::cpu::table::stamp;
            stamp!(activation($($features)?) = rows::activation::<$vector>;
                (kind: crate::gpu::Activation, x: &mut [f32]));
            stamp!(exp($($features)?) = rows::exp::<$vector>; (x: &mut [f32]));
            stamp!(finish($($features)?) = rows::finish::<$vector>;
                (c: &mut [f32], b: Option<&[f32]>, act: crate::gpu::Activation, r: Option<&[f32]>));
            stamp!(add($($features)?) = rows::add::<$vector>; (x: &mut [f32], y: &[f32]));
            stamp!(mul($($features)?) = rows::mul::<$vector>; (x: &mut [f32], y: &[f32]));
            stamp!(dot($($features)?) = rows::dot::<$vector>; (a: &[f32], b: &[f32]) -> f32);
            stamp!(softmax($($features)?) = rows::softmax::<$vector>;
                (x: &mut [f32], scale: f32, bias: Option<&[f32]>));
            stamp!(layer_norm($($features)?) = rows::layer_norm::<$vector>;
                (x: &mut [f32], g: &[f32], b: Option<&[f32]>, eps: f32));
            stamp!(rms_norm($($features)?) = rows::rms_norm::<$vector>; (x: &mut [f32], g: &[f32], eps: f32));
            stamp!(l2_normalize($($features)?) = rows::l2_normalize::<$vector>; (x: &mut [f32]));
            $(#[target_feature(enable = $features)])?
            unsafe fn block(b: &gemm::Block) {
                // SAFETY: forwarded; the tile is asked for no more than its rows and panels.
                unsafe { gemm::block::<$vector>(b, $tile_rows, $tile_panels, |t| tile(t)) }
            }
            crate::cpu::table::Kernels {
                name: $name,
                raw: crate::cpu::table::Raw {
                    tile_rows: $tile_rows,
                    tile_panels: $tile_panels,
                    activation, exp, finish, add, mul, dot, softmax, layer_norm, rms_norm, l2_normalize, block,
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

/// A read-only matrix view: row r starts at `data[r * stride]`.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a> {
    pub data: &'a [f32],
    pub stride: usize,
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
    pub fn finish(&self, x: &mut [f32], bias: Option<&[f32]>, act: Activation, residual: Option<&[f32]>) {
        assert!(bias.is_none_or(|b| b.len() == x.len()), "finish: bias length");
        assert!(residual.is_none_or(|r| r.len() == x.len()), "finish: residual length");
        // SAFETY: as above; the lengths agree.
        unsafe { (self.raw.finish)(x, bias, act, residual) }
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

    /// C[rows, n] = A[rows, k] * B over panels `[panel][k][16]` held in `b`, single-threaded: the product used inside
    /// attention, where both operands are activations.
    #[allow(clippy::too_many_arguments)] // the shape of a matrix product
    pub(crate) fn multiply(&self, rows: usize, k: usize, n: usize, a: Matrix, b: &[f32], c: &mut [f32], ldc: usize) {
        assert!(c.len() >= rows.saturating_sub(1) * ldc + n, "multiply: C is {} long", c.len());
        // SAFETY: `c` holds the rows, and is borrowed exclusively.
        unsafe { self.multiply_raw(rows, k, n, a, b, c.as_mut_ptr(), ldc) }
    }

    /// As [`multiply`](Self::multiply), into memory whose other columns may belong to other threads.
    ///
    /// # Safety
    /// Rows of n values, `ldc` apart, can be written at `c` by this thread alone.
    #[allow(clippy::too_many_arguments)] // the shape of a matrix product
    pub(crate) unsafe fn multiply_raw(
        &self,
        rows: usize,
        k: usize,
        n: usize,
        a: Matrix,
        b: &[f32],
        c: *mut f32,
        ldc: usize,
    ) {
        let panels = n.div_ceil(PANEL);
        if rows == 0 || n == 0 {
            return;
        }
        assert!(k > 0 && a.data.len() >= (rows - 1) * a.stride + k, "multiply: A is {} long", a.data.len());
        assert!(b.len() >= panels * k * PANEL, "multiply: B is {} long", b.len());
        for k0 in (0..k).step_by(gemm::K_BLOCK) {
            let block = gemm::Block {
                rows,
                k: gemm::K_BLOCK.min(k - k0),
                a: a.data[k0..].as_ptr(),
                lda: a.stride,
                b: b[k0 * PANEL..].as_ptr(),
                panel_stride: k * PANEL,
                panels: 0..panels,
                contiguous: false,
                c,
                ldc,
                n,
                first: k0 == 0,
                finish: None,
            };
            // SAFETY: the CPU has the table's instruction set; the assertions and the contract cover what it touches.
            unsafe { (self.raw.block)(&block) }
        }
    }
}
