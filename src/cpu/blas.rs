//! A second tier of matrix products: a BLAS multiplies, in an order of its own. Its results are near the contract's,
//! and not its bits; it is there only in a build with the feature `accelerate` on macOS, and `KIN_INFER_CPU_BACKEND`
//! turns it off.

use rayon::prelude::*;

use super::packed::Product;
use super::table::Kernels;
use crate::error::{InferError, Result};

/// A library that multiplies matrices.
#[derive(Debug)]
pub(super) struct Blas {
    pub name: &'static str,
    pub sgemm: Sgemm,
}

/// `out[rows, n] = x[rows, k] W^T`, W [n, k], all row-major and as long as that; no size is 0 or above `i32::MAX`.
type Sgemm = fn(rows: usize, n: usize, k: usize, x: &[f32], w: &[f32], out: &mut [f32]);

#[cfg(all(feature = "accelerate", target_os = "macos"))]
const BUILT_IN: Option<&Blas> = Some(&accelerate::ACCELERATE);
#[cfg(not(all(feature = "accelerate", target_os = "macos")))]
const BUILT_IN: Option<&Blas> = None;

/// The library in use: the one that is built in, unless `KIN_INFER_CPU_BACKEND` pins the deterministic kernels.
///
/// # Errors
/// When the variable names what this build does not have.
pub(super) fn selected() -> Result<Option<&'static Blas>> {
    select(crate::env::cpu_backend().as_deref(), BUILT_IN)
}

/// What multiplies matrices on the CPU: `pure-rust`, or the library that `KIN_INFER_CPU_BACKEND` describes.
///
/// # Errors
/// When the variable names what this build does not have.
pub fn products() -> Result<&'static str> {
    Ok(selected()?.map_or("pure-rust", |blas| blas.name))
}

fn select(named: Option<&str>, built_in: Option<&'static Blas>) -> Result<Option<&'static Blas>> {
    match (named, built_in) {
        (None, _) => Ok(built_in),
        (Some("pure-rust"), _) => Ok(None),
        (Some(name), Some(blas)) if name == blas.name => Ok(built_in),
        (Some(name), _) => {
            let names = built_in.map_or(String::new(), |blas| format!(" or {}", blas.name));
            Err(InferError::InvalidArgument(format!(
                "KIN_INFER_CPU_BACKEND: `{name}`, this build has pure-rust{names}"
            )))
        }
    }
}

/// Rows of one call of the library.
const ROWS: usize = 1 << 20;

/// `c[rows, n] = act(a W^T + bias) * factor + residual`, W [n, k] row-major.
pub(super) fn run(blas: &Blas, kernels: &Kernels, p: &Product, w: &[f32], c: &mut [f32]) {
    let (n, k) = (p.weight.n, p.weight.k);
    let c = &mut c[..p.rows * n];
    if k == 0 {
        c.fill(0.0);
    } else {
        for (a, c) in p.a[..p.rows * k].chunks(ROWS * k).zip(c.chunks_mut(ROWS * n)) {
            (blas.sgemm)(a.len() / k, n, k, a, w, c);
        }
    }
    c.par_chunks_mut(n).with_min_len(16).enumerate().for_each(|(i, row)| {
        if let Some(bias) = p.bias {
            kernels.add(row, &bias[..n]);
        }
        kernels.activation(p.activation, row);
        if let Some(factor) = p.factor {
            kernels.mul(row, &factor[i * n..][..n]);
        }
        if let Some(residual) = p.residual {
            kernels.add(row, &residual[i * n..][..n]);
        }
    });
}

#[cfg(all(feature = "accelerate", target_os = "macos"))]
mod accelerate {
    //! Apple's Accelerate framework, a part of the system.

    use std::ffi::c_int;

    use super::Blas;

    pub(super) static ACCELERATE: Blas = Blas { name: "accelerate", sgemm };

    const ROW_MAJOR: c_int = 101;
    const AS_IT_IS: c_int = 111;
    const TRANSPOSED: c_int = 112;

    #[link(name = "Accelerate", kind = "framework")]
    unsafe extern "C" {
        /// `c = alpha op(a) op(b) + beta c`, as the CBLAS interface has it.
        fn cblas_sgemm(
            order: c_int,
            transpose_a: c_int,
            transpose_b: c_int,
            m: c_int,
            n: c_int,
            k: c_int,
            alpha: f32,
            a: *const f32,
            lda: c_int,
            b: *const f32,
            ldb: c_int,
            beta: f32,
            c: *mut f32,
            ldc: c_int,
        );
    }

    fn sgemm(rows: usize, n: usize, k: usize, x: &[f32], w: &[f32], out: &mut [f32]) {
        assert!(x.len() == rows * k && w.len() == n * k && out.len() == rows * n, "sgemm: operand lengths");
        let [m, n, k] = [rows, n, k].map(|size| c_int::try_from(size).unwrap_or_else(|_| panic!("sgemm: {size}")));
        let (x, w, out) = (x.as_ptr(), w.as_ptr(), out.as_mut_ptr());
        // SAFETY: the operands are as long as m, n and k say, and distinct by their types.
        unsafe { cblas_sgemm(ROW_MAJOR, AS_IT_IS, TRANSPOSED, m, n, k, 1.0, x, k, w, k, 0.0, out, n) };
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::cancel::Cancel;
    use super::super::packed::{self, PackedMatrix};
    use super::*;
    use crate::cpu::{CpuCompute, available, quant_for};
    use crate::gpu::{Activation, GpuCompute};
    use crate::{BertConfig, BertModel};

    /// Sums in binary64, in one chain: near the contract's results, and seldom its bits.
    fn wide(rows: usize, n: usize, k: usize, x: &[f32], w: &[f32], out: &mut [f32]) {
        for (i, j) in (0..rows).flat_map(|i| (0..n).map(move |j| (i, j))) {
            let products = (0..k).map(|l| f64::from(x[i * k + l]) * f64::from(w[j * k + l]));
            out[i * n + j] = products.sum::<f64>() as f32;
        }
    }

    pub(in crate::cpu) static WIDE: Blas = Blas { name: "wide", sgemm: wide };

    #[test]
    fn the_environment_pins_the_deterministic_kernels() {
        let name =
            |named, built_in| select(named, built_in).map(|blas| blas.map(|b| b.name)).map_err(|e| e.to_string());
        assert_eq!(name(None, None), Ok(None));
        assert_eq!(name(None, Some(&WIDE)), Ok(Some("wide")));
        assert_eq!(name(Some("wide"), Some(&WIDE)), Ok(Some("wide")));
        assert_eq!(name(Some("pure-rust"), Some(&WIDE)), Ok(None));
        assert_eq!(name(Some("pure-rust"), None), Ok(None));
        let why = name(Some("wide"), None).unwrap_err();
        assert!(why.ends_with("KIN_INFER_CPU_BACKEND: `wide`, this build has pure-rust"), "{why}");
        let why = name(Some("mkl"), Some(&WIDE)).unwrap_err();
        assert!(why.ends_with("`mkl`, this build has pure-rust or wide"), "{why}");
    }

    /// Every epilogue, within a few roundings of the deterministic product.
    #[test]
    fn products_are_near_the_deterministic_ones() {
        let values = |len: usize, seed: usize| -> Vec<f32> {
            (0..len).map(|i| ((i * 7919 + seed * 104_729) % 2001) as f32 / 1000.0 - 1.0).collect()
        };
        let kernels = available()[0];
        let mut compared = 0;
        for (rows, n, k) in [(1, 1, 1), (1, 40, 700), (5, 33, 64), (40, 17, 1100), (3, 5, 0)] {
            let (a, w) = (values(rows * k, 1), values(n * k, 2));
            let (bias, factor, residual) = (values(n, 3), values(rows * n, 4), values(rows * n, 5));
            for (case, activation) in [(0, Activation::Identity), (7, Activation::GeluErf), (5, Activation::Relu)] {
                let product = |weight: &PackedMatrix| {
                    let product = Product {
                        rows,
                        a: &a,
                        weight,
                        bias: (case & 1 != 0).then_some(&bias[..]),
                        activation,
                        factor: (case & 2 != 0).then_some(&factor[..]),
                        residual: (case & 4 != 0).then_some(&residual[..]),
                        cancel: &Cancel::default(),
                    };
                    let mut c = vec![f32::NAN; rows * n];
                    packed::run(kernels, quant_for(kernels), &product, &mut c);
                    c
                };
                let exact = product(&PackedMatrix::of_values(n, k, &w, None));
                for blas in [Some(&WIDE), BUILT_IN].into_iter().flatten() {
                    let near = product(&PackedMatrix::of_values(n, k, &w, Some(blas)));
                    for (e, found) in exact.iter().zip(&near) {
                        let case = format!("{}, {rows} x {n} x {k}, case {case}", blas.name);
                        assert!((e - found).abs() < 2e-4, "{case}: {e} and {found}");
                        compared += 1;
                    }
                }
            }
        }
        assert!(compared > 2000, "{compared}");
    }

    /// A backend with a BLAS says that it is not exact, and no fingerprint is made of its results.
    #[test]
    fn models_are_near_and_have_no_fingerprint() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/bert-f16");
        let load = |compute: CpuCompute| {
            let config = BertConfig::from_folder(&folder).unwrap();
            BertModel::load_with_compute(&folder, config, std::sync::Arc::new(compute)).unwrap()
        };
        let exact = CpuCompute::with_kernels(available()[0]);
        assert!(exact.is_exact());
        let near = CpuCompute::with_kernels(available()[0]).with_blas(Some(&WIDE));
        assert!(!near.is_exact() && near.device().detail.ends_with(", products by wide"));
        let (exact, near) = (load(exact), load(near));
        let sequences = [crate::Sequence::new((0..20).collect())];
        let of = |model: &BertModel| model.encode(&sequences).remove(0).unwrap().hidden;
        let (exact_values, near_values) = (of(&exact), of(&near));
        assert!(exact_values.iter().zip(&near_values).all(|(e, n)| (e - n).abs() < 1e-4));
        assert!(exact_values != near_values, "the BLAS was not used");
        assert!(crate::fingerprint(&exact).is_ok());
        let why = crate::fingerprint(&near).unwrap_err().to_string();
        assert!(why.contains("KIN_INFER_CPU_BACKEND=pure-rust"), "{why}");
    }
}
