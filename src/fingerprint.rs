//! One hash of a model's outputs on fixed inputs: equal on every machine, or the promise is broken.

use sha2::{Digest, Sha256};

use crate::batch::Sequence;
use crate::error::{InferError, Result};
use crate::model::BertModel;

/// Lengths of the fixed inputs: below, at and beyond every register and tile width, and two long ones.
const LENGTHS: [usize; 16] = [1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 64, 97, 130, 200, 256];

/// SHA-256 over the bits (little-endian f32) of the last layer's token vectors, and of a classifier's scores, for
/// sixteen token sequences that a fixed linear congruential generator draws from the vocabulary.
///
/// # Errors
/// A backend that is not exact, a model whose outputs are not finite, or memory that cannot be had.
pub fn fingerprint(model: &BertModel) -> Result<[u8; 32]> {
    if !model.compute().is_exact() {
        let detail = model.compute().device().detail;
        let why = format!("fingerprint: results of this backend ({detail}) differ from machine to machine");
        return Err(InferError::InvalidArgument(format!("{why}; set KIN_INFER_CPU_BACKEND=pure-rust")));
    }
    let e = &model.spec().embedding;
    let mut state = 1u64;
    let mut draw = |below: usize| {
        // Knuth's MMIX generator; the high bits are the good ones.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) % below as u64) as u32
    };
    let sequences: Vec<Sequence> = LENGTHS
        .iter()
        .map(|len| Sequence::new((0..(*len).min(model.spec().max_tokens)).map(|_| draw(e.vocab_size)).collect()))
        .collect();
    let mut hash = Sha256::new();
    for encoded in model.encode(&sequences) {
        let encoded = encoded?;
        for value in encoded.hidden.iter().chain(&encoded.labels) {
            hash.update(value.to_bits().to_le_bytes());
        }
    }
    Ok(hash.finalize().into())
}
