//! Blocks: any bytes stand for values, and values that blocks hold come back as they were.
#![no_main]

use kin_infer::weights::{Dtype, blocks};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    for (_, dtype) in Dtype::ALL.iter().filter(|(_, dtype)| dtype.is_block()) {
        let count = bytes.len() / dtype.size();
        let bytes = &bytes[..count * dtype.size()];
        let mut values = vec![0.0; count * dtype.block_len()];
        blocks::dequantise(*dtype, bytes, &mut values).expect("whole blocks");
        let mut new = vec![0; bytes.len()];
        if !matches!(dtype, Dtype::Q8_0 | Dtype::Q4_0) || blocks::quantise(*dtype, &values, &mut new).is_err() {
            continue;
        }
        // Values of blocks are near what they become: half a step of the largest, and a little for the scale's rounding.
        let mut again = vec![0.0; values.len()];
        blocks::dequantise(*dtype, &new, &mut again).expect("whole blocks");
        let levels = if *dtype == Dtype::Q8_0 { 127.0 } else { 8.0 };
        for (old, new) in values.chunks(dtype.block_len()).zip(again.chunks(dtype.block_len())) {
            let largest = old.iter().fold(0f32, |m, v| m.max(v.abs()));
            let worst = old.iter().zip(new).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
            assert!(worst <= largest / levels * 1.01 + largest * 1e-3 + 8e-6, "{dtype}: {worst} of {largest}");
        }
    }
});
