//! Rows of a cache: what a text became, as bytes.

use kin_infer::embedder::{Counted, SparseVector, TokenVectors};

use crate::encoder::{Encoded, Kind};

/// Tokens, whether the text was cut, how many numbers, the numbers, the values: words of four bytes.
pub fn to_bytes(row: &Counted<Encoded>) -> Vec<u8> {
    let numbers = row.value.numbers();
    let head = [row.tokens as u32, row.truncated.into(), numbers.len() as u32];
    let values = row.value.floats().iter().map(|v| v.to_bits());
    head.into_iter().chain(numbers.iter().copied()).chain(values).flat_map(u32::to_le_bytes).collect()
}

/// The row that was written; none if it is of another form.
pub fn from_bytes(bytes: &[u8], kind: Kind, dimension: usize) -> Option<Counted<Encoded>> {
    let words: Vec<u32> = bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    let (&[tokens, truncated, len], rest) = words.split_first_chunk()?;
    let (numbers, values) = rest.split_at_checked(len as usize)?;
    let values: Vec<f32> = values.iter().copied().map(f32::from_bits).collect();
    let expected = match kind {
        Kind::Vector => dimension,
        Kind::Tokens => numbers.len() * dimension,
        Kind::Sparse => numbers.len(),
    };
    if values.len() != expected || !bytes.len().is_multiple_of(4) {
        return None;
    }
    let value = match kind {
        Kind::Vector => Encoded::Vector(values),
        Kind::Tokens => Encoded::Tokens(TokenVectors { ids: numbers.to_vec(), vectors: values }),
        Kind::Sparse => Encoded::Sparse(SparseVector { indices: numbers.to_vec(), values }),
    };
    Some(Counted { value, tokens: tokens as usize, truncated: truncated != 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_back() {
        let (ids, values) = (vec![7, u32::MAX], vec![0.0, -0.0, 1e-45, f32::MAX]);
        for (kind, value) in [
            (Kind::Vector, Encoded::Vector(values.clone())),
            (
                Kind::Tokens,
                Encoded::Tokens(TokenVectors { ids: ids.clone(), vectors: [&values[..], &values].concat() }),
            ),
            (Kind::Sparse, Encoded::Sparse(SparseVector { indices: ids.clone(), values: values[2..].to_vec() })),
        ] {
            let row = Counted { value, tokens: 9, truncated: true };
            let bytes = to_bytes(&row);
            let back = from_bytes(&bytes, kind, 4).unwrap();
            let bits = |row: &Counted<Encoded>| row.value.floats().iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            assert_eq!((bits(&back), back.value.numbers()), (bits(&row), row.value.numbers()));
            assert_eq!((back.tokens, back.truncated), (9, true));
            for len in 0..bytes.len() {
                assert!(from_bytes(&bytes[..len], kind, 4).is_none(), "{len}");
            }
        }
    }
}
