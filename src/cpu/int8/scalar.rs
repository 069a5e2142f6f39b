//! One lane: the definition.

use super::super::quant::scalar::Scalar;
use super::kernel::{Int8Ops, int8_table};

impl Int8Ops for Scalar {
    const UNSIGNED: bool = false;
    const QUADS: usize = 1;
    type Sums = i32;
    type Weights = [i32; 4];
    type Activations = [i32; 4];
    unsafe fn start(p: *const i32, factor: i32) -> i32 {
        // SAFETY: the caller vouches for the value.
        unsafe { *p }.wrapping_mul(factor)
    }
    unsafe fn weights(p: *const u8) -> [i32; 4] {
        // SAFETY: the caller vouches for a quad.
        std::array::from_fn(|i| i32::from(unsafe { *p.add(i) } as i8))
    }
    unsafe fn activations(p: *const u8) -> [i32; 4] {
        // SAFETY: forwarded.
        unsafe { Self::weights(p) }
    }
    unsafe fn dot(sums: i32, w: [i32; 4], a: [i32; 4]) -> i32 {
        (0..4).fold(sums, |sum, i| sum.wrapping_add(w[i] * a[i]))
    }
    unsafe fn totals(sums: i32) -> f32 {
        sums as f32
    }
    unsafe fn larger_ints(x: f32, y: f32) -> f32 {
        if (x.to_bits() as i32) < y.to_bits() as i32 { y } else { x }
    }
}

int8_table!(KERNELS, Scalar, (1, 1), 1: );
