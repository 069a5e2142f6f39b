//! Q4_K, Q5_K and Q6_K: 256 values in groups, whose scales are small multiples of the block's.

use super::scale_at;

const N: usize = 256;

pub(super) fn read_q4_k(block: &[u8; 144], out: &mut [f32; N]) {
    let (scales, q) = (&block[4..16], &block[16..]);
    for (group, values) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (d, m) = group_scales(block, scales, group);
        let (bytes, shift) = (&q[group / 2 * 32..][..32], group % 2 * 4);
        for (value, byte) in values.iter_mut().zip(bytes) {
            *value = d * f32::from(byte >> shift & 15) - m;
        }
    }
}

pub(super) fn read_q5_k(block: &[u8; 176], out: &mut [f32; N]) {
    let (scales, fifth, q) = (&block[4..16], &block[16..48], &block[48..]);
    for (group, values) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (d, m) = group_scales(block, scales, group);
        let (bytes, shift) = (&q[group / 2 * 32..][..32], group % 2 * 4);
        for (value, (byte, bits)) in values.iter_mut().zip(bytes.iter().zip(fifth)) {
            let q = byte >> shift & 15 | (bits >> group & 1) << 4;
            *value = d * f32::from(q) - m;
        }
    }
}

/// Scale and minimum of a group of 32: the block's, times the group's 6 bits. Groups 0 to 3 have theirs in the low bits of
/// bytes 0 to 3 (scales) and 4 to 7 (minima); groups 4 to 7 have four bits in bytes 8 to 11 (scales low, minima high)
/// and two in the high bits of the bytes of the group four before.
fn group_scales(block: &[u8], packed: &[u8], group: usize) -> (f32, f32) {
    let (scale, minimum) = match group {
        0..4 => (packed[group] & 63, packed[group + 4] & 63),
        _ => {
            let (low, high) = (packed[group + 4], |at: usize| packed[at] >> 6 << 4);
            (low & 15 | high(group - 4), low >> 4 | high(group))
        }
    };
    (scale_at(block, 0) * f32::from(scale), scale_at(block, 2) * f32::from(minimum))
}

pub(super) fn read_q6_k(block: &[u8; 210], out: &mut [f32; N]) {
    let (low, high, scales, d) = (&block[..128], &block[128..192], &block[192..208], scale_at(block, 208));
    for (group, values) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        // Halves of 128 values: 64 bytes of low bits, read twice, and 32 of high bits, read four times.
        let (half, quarter) = (group / 4, group % 4);
        let low = &low[half * 64 + quarter % 2 * 32..][..32];
        let high = &high[half * 32..][..32];
        for (i, value) in values.iter_mut().enumerate() {
            let q = low[i] >> (quarter / 2 * 4) & 15 | (high[i] >> (quarter * 2) & 3) << 4;
            let scale = d * f32::from(scales[group * 2 + i / 16] as i8);
            *value = scale * (f32::from(q) - 32.0);
        }
    }
}
