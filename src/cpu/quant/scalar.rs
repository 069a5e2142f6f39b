//! One lane: the definition.

use super::super::int8::scalar as int8;
use super::kernel::{QuantOps, quant_table};

pub(in crate::cpu) struct Scalar;

/// Four bytes with their signs.
unsafe fn signs(p: *const i8) -> [i32; 4] {
    // SAFETY: the caller vouches for the bytes.
    std::array::from_fn(|i| i32::from(unsafe { *p.add(i) }))
}

fn products(acc: i32, w: [i32; 4], a: [i32; 4]) -> i32 {
    (0..4).fold(acc, |acc, i| acc + w[i] * a[i])
}

impl QuantOps for Scalar {
    type V = f32;
    type Ints = i32;
    type Quads = [i32; 4];
    const SIGNED_START: i32 = 0;
    unsafe fn splat(x: i32) -> i32 {
        x
    }
    unsafe fn load(p: *const u8) -> [i32; 4] {
        // SAFETY: forwarded.
        unsafe { signs(p.cast()) }
    }
    unsafe fn store(w: [i32; 4], p: *mut u8) {
        // SAFETY: the caller vouches for four bytes.
        (0..4).for_each(|i| unsafe { *p.add(i) = w[i] as u8 });
    }
    unsafe fn broadcast(a: *const i8) -> [i32; 4] {
        // SAFETY: forwarded.
        unsafe { signs(a) }
    }
    unsafe fn signed(p: *const u8) -> [i32; 4] {
        // SAFETY: forwarded.
        unsafe { signs(p.cast()) }
    }
    unsafe fn nibbles(p: *const u8) -> ([i32; 4], [i32; 4]) {
        // SAFETY: the caller vouches for a quad.
        let bytes: [u8; 4] = std::array::from_fn(|i| unsafe { *p.add(i) });
        (bytes.map(|b| i32::from(b & 15)), bytes.map(|b| i32::from(b >> 4)))
    }
    unsafe fn dot_signed(acc: i32, w: [i32; 4], a: [i32; 4]) -> i32 {
        products(acc, w, a)
    }
    unsafe fn dot_nibbles(acc: i32, w: [i32; 4], a: [i32; 4]) -> i32 {
        products(acc, w, a)
    }
    unsafe fn floats(x: i32) -> f32 {
        x as f32
    }
    unsafe fn scales(p: *const u16) -> f32 {
        // SAFETY: the caller vouches for a scale.
        half::f16::from_bits(unsafe { *p }).to_f32()
    }
    unsafe fn larger_bits(x: f32, y: f32) -> f32 {
        if x.to_bits() < y.to_bits() { y } else { x }
    }
    unsafe fn low_bytes(x: f32, p: *mut i8) {
        // SAFETY: the caller vouches for a byte.
        unsafe { *p = x.to_bits() as i8 };
    }
}

quant_table!(KERNELS, "scalar", Scalar, int8::KERNELS, 4 x 1: 2 3 4);
