//! Blocks taken apart into the small integers and scales that their bytes hold: what each type of block means.

use half::f16;

use crate::weights::Dtype;

/// Values of a [`Part`].
pub(crate) const PART: usize = 32;

/// 32 consecutive values of a block: value i is `(d s) q[i]`, s the first multiple for i < 16, else the second; in
/// types with minima `(d s) q[i] + m`, or `- m` in those with multiples, where m is the minimum times its multiple.
pub(crate) struct Part {
    pub q: [i8; PART],
    /// The scale of the block.
    pub d: f16,
    /// 1 in types of which a scale is all that a block has.
    pub multiples: [i8; 2],
    pub minimum: f16,
    pub minimum_multiple: i8,
}

/// What integers as they are stored are too large by.
pub(crate) const fn centre(dtype: Dtype) -> u8 {
    match dtype {
        Dtype::Q4_0 => 8,
        Dtype::Q5_0 => 16,
        Dtype::Q6K => 32,
        _ => 0,
    }
}

/// Whether blocks have minima.
pub(crate) const fn has_minima(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::Q4_1 | Dtype::Q5_1 | Dtype::Q4K | Dtype::Q5K)
}

impl Part {
    /// Part `index` of a block.
    pub fn of(dtype: Dtype, block: &[u8], index: usize) -> Self {
        let (low, high) = (|at: usize| nibbles(&block[at..]), |at: usize| bits(&block[at..]));
        let plain = |q: [u8; PART]| Self {
            q: q.map(|q| q.wrapping_sub(centre(dtype)) as i8),
            d: half_at(block, 0),
            multiples: [1; 2],
            minimum: if has_minima(dtype) { half_at(block, 2) } else { f16::ZERO },
            minimum_multiple: 1,
        };
        let fifth = |q: [u8; PART], fifth: [u8; PART]| std::array::from_fn(|i| q[i] | fifth[i] << 4);
        match dtype {
            Dtype::Q4_0 => plain(low(2)),
            Dtype::Q4_1 => plain(low(4)),
            Dtype::Q5_0 => plain(fifth(low(6), high(2))),
            Dtype::Q5_1 => plain(fifth(low(8), high(4))),
            Dtype::Q4K => Self { q: halves(&block[16..], index).map(|q| q as i8), ..group(block, index, plain) },
            Dtype::Q5K => {
                let q = fifth(halves(&block[48..], index), std::array::from_fn(|i| block[16 + i] >> index & 1));
                Self { q: q.map(|q| q as i8), ..group(block, index, plain) }
            }
            Dtype::Q6K => Self {
                d: half_at(block, 208),
                multiples: [block[192 + 2 * index] as i8, block[193 + 2 * index] as i8],
                ..plain(q6_k(block, index))
            },
            _ => plain(std::array::from_fn(|i| block[2 + i])),
        }
    }

    /// The values that the part stands for.
    pub fn values(&self, dtype: Dtype, out: &mut [f32; PART]) {
        let d = self.d.to_f32();
        let scales = self.multiples.map(|s| d * f32::from(s));
        let (first, second) = out.split_at_mut(PART / 2);
        for (values, (q, scale)) in [first, second].into_iter().zip(self.q.chunks(PART / 2).zip(scales)) {
            for (value, q) in values.iter_mut().zip(q) {
                *value = scale * f32::from(*q);
            }
        }
        if has_minima(dtype) {
            let m = self.minimum.to_f32() * f32::from(self.minimum_multiple);
            let m = if dtype.block_len() > PART { -m } else { m };
            out.iter_mut().for_each(|value| *value += m);
        }
    }
}

pub(super) fn half_at(block: &[u8], at: usize) -> f16 {
    f16::from_le_bytes([block[at], block[at + 1]])
}

/// The low halves of 16 bytes, then their high halves.
fn nibbles(bytes: &[u8]) -> [u8; PART] {
    std::array::from_fn(|i| bytes[i % 16] >> (i / 16 * 4) & 15)
}

/// The bits of four bytes, from the lowest.
fn bits(bytes: &[u8]) -> [u8; PART] {
    std::array::from_fn(|i| bytes[i / 8] >> (i % 8) & 1)
}

/// Group `index` of nibbles: the low halves of 32 bytes, then their high halves.
fn halves(bytes: &[u8], index: usize) -> [u8; PART] {
    std::array::from_fn(|i| bytes[index / 2 * PART + i] >> (index % 2 * 4) & 15)
}

/// A part with the multiples of its group of 32, 6 bits each: groups 0 to 3 have theirs in the low bits of bytes 0 to 3
/// (scales) and 4 to 7 (minima); groups 4 to 7 have four bits in bytes 8 to 11 (scales low, minima high) and two in the
/// high bits of the bytes of the group four before.
fn group(block: &[u8], index: usize, plain: impl Fn([u8; PART]) -> Part) -> Part {
    let packed = &block[4..16];
    let (scale, minimum) = match index {
        0..4 => (packed[index] & 63, packed[index + 4] & 63),
        _ => {
            let (low, high) = (packed[index + 4], |at: usize| packed[at] >> 6 << 4);
            (low & 15 | high(index - 4), low >> 4 | high(index))
        }
    };
    Part { multiples: [scale as i8; 2], minimum_multiple: minimum as i8, ..plain([0; PART]) }
}

/// Halves of 128 values: 64 bytes of low bits, read twice, and 32 of high bits, read four times.
fn q6_k(block: &[u8], index: usize) -> [u8; PART] {
    let (half, quarter) = (index / 4, index % 4);
    let low = &block[half * 64 + quarter % 2 * 32..][..32];
    let high = &block[128 + half * 32..][..32];
    std::array::from_fn(|i| low[i] >> (quarter / 2 * 4) & 15 | (high[i] >> (quarter * 2) & 3) << 4)
}
