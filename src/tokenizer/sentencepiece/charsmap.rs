//! The precompiled character map of SentencePiece, checked before the `spm_precompiled` crate reads it.
//!
//! A map is the byte length of a double-array trie, the trie's units (little-endian `u32`), and replacement texts, each
//! ended by a zero byte. The crate trusts all three; a map that passes [`check`] cannot make it index past an end.

use serde_json::Value;
use tokenizers::normalizers::precompiled::Precompiled;

/// The normaliser of a character map.
pub(super) fn normalizer(charsmap: &[u8]) -> Result<Precompiled, String> {
    check(charsmap).ok_or("the precompiled character map is malformed")?;
    Precompiled::from(charsmap).map_err(|error| error.to_string())
}

/// `None` unless every walk from the trie's root, whatever its bytes, stays inside the trie and ends in a replacement.
fn check(charsmap: &[u8]) -> Option<()> {
    let (length, rest) = charsmap.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
    let (trie, texts) = rest.split_at_checked(length)?;
    let texts = std::str::from_utf8(texts).ok()?;
    let (units, []) = trie.as_chunks::<4>() else { return None };
    let units: Vec<usize> = units.iter().map(|unit| u32::from_le_bytes(*unit) as usize).collect();
    let mut seen = vec![false; units.len()];
    let mut open = vec![0];
    while let Some(node) = open.pop() {
        let base = node ^ offset(*units.get(node)?);
        for label in 1..=255 {
            let child = base ^ label;
            let unit = *units.get(child)?;
            if unit & (TOP | 0xff) != label || std::mem::replace(&mut seen[child], true) {
                continue;
            }
            if unit & LEAF != 0 && !texts.is_char_boundary(units.get(child ^ offset(unit))? & !TOP) {
                return None;
            }
            open.push(child);
        }
    }
    Some(())
}

/// Set in a unit that holds a value instead of a label.
const TOP: usize = 1 << 31;
/// Set in a unit whose node ends a key.
const LEAF: usize = 1 << 8;

/// How far the children of a unit's node lie from it.
fn offset(unit: usize) -> usize {
    (unit >> 10) << ((unit & (1 << 9)) >> 6)
}

/// Whether every character map in the normaliser of a tokenizer.json passes [`check`].
pub(in crate::tokenizer) fn maps_are_sound(normalizer: &Value) -> bool {
    let own = match normalizer.get("precompiled_charsmap").and_then(Value::as_str) {
        Some(text) => base64(text).is_some_and(|map| check(&map).is_some()),
        None => true,
    };
    let inner = normalizer.get("normalizers").and_then(Value::as_array);
    own && inner.is_none_or(|inner| inner.iter().all(maps_are_sound))
}

/// Bytes from base64 with padding.
fn base64(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=').bytes().map(|byte| match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    });
    let digits = digits.collect::<Option<Vec<u8>>>()?;
    let group = |group: &[u8]| {
        let bits = group.iter().fold(0, |bits, digit| bits << 6 | u32::from(*digit)) << (6 * (4 - group.len()));
        bits.to_be_bytes()[1..group.len()].to_vec()
    };
    Some(digits.chunks(4).flat_map(group).collect())
}
