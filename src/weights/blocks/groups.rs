//! Q8_0 and Q4_0 made of 32 values.

use half::f16;

const N: usize = 32;

/// Writes a block and gives its scale.
pub(super) fn write_q8_0(values: &[f32; N], block: &mut [u8; 34]) -> f16 {
    let d = values[largest(values)].abs() / 127.0;
    let inverse = inverse(d);
    for (q, value) in block[2..].iter_mut().zip(values) {
        *q = finite(value * inverse).round() as i8 as u8;
    }
    put_scale(block, d)
}

/// Writes a block and gives its scale.
pub(super) fn write_q4_0(values: &[f32; N], block: &mut [u8; 18]) -> f16 {
    let d = values[largest(values)] / -8.0;
    let inverse = inverse(d);
    let q = |value: f32| (finite(value * inverse + 8.5) as u8).min(15);
    for (i, byte) in block[2..].iter_mut().enumerate() {
        *byte = q(values[i]) | q(values[i + N / 2]) << 4;
    }
    put_scale(block, d)
}

/// Index of the first value of the largest magnitude.
pub(super) fn largest(values: &[f32]) -> usize {
    (1..values.len()).fold(0, |best, i| if values[i].abs() > values[best].abs() { i } else { best })
}

fn inverse(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

/// The value, or 0 for what an overflowed inverse makes of it.
fn finite(value: f32) -> f32 {
    if value.is_finite() { value } else { 0.0 }
}

fn put_scale(block: &mut [u8], d: f32) -> f16 {
    let d = f16::from_f32(d);
    block[..2].copy_from_slice(&d.to_le_bytes());
    d
}
