//! The tensors of a GGUF file, checked against it.

use std::collections::HashSet;
use std::path::Path;

use super::cursor::Cursor;
use crate::error::{InferError, Result};
use crate::weights::header::Entry;
use crate::weights::{Dtype, tensor_error};

/// Most dimensions a tensor has.
const DIMENSIONS: u32 = 4;

/// Bytes of the shortest description: an empty name, no dimensions, type and offset.
pub(super) const SHORTEST: usize = 8 + 4 + 4 + 8;

/// Numbers of types, with the names they have in messages; those that are read as floats, then others of known size.
const TYPES: [(u32, &str); 20] = [
    (0, "F32"),
    (1, "F16"),
    (30, "BF16"),
    (8, "Q8_0"),
    (2, "Q4_0"),
    (3, "Q4_1"),
    (6, "Q5_0"),
    (7, "Q5_1"),
    (12, "Q4_K"),
    (13, "Q5_K"),
    (14, "Q6_K"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (28, "F64"),
    // Known by name, and not read.
    (9, "Q8_1"),
    (10, "Q2_K"),
    (11, "Q3_K"),
    (39, "MXFP4"),
];

/// Reads `count` descriptions; ranges count from the start of the file, whose data begins at the first multiple of
/// `alignment` after them.
pub(super) fn read(
    file: &Path,
    bytes: &[u8],
    cursor: &mut Cursor,
    count: usize,
    alignment: usize,
) -> Result<Vec<Entry>> {
    let mut entries = Vec::new();
    let mut names = HashSet::new();
    for _ in 0..count {
        let entry = description(file, cursor)?;
        if !names.insert(entry.name.clone()) {
            return Err(tensor_error(file, &entry.name, "each name once", "a second tensor of this name"));
        }
        entries.push(entry);
    }
    let start = cursor.at.next_multiple_of(alignment);
    place(file, &mut entries, start, bytes.len(), alignment)?;
    Ok(entries)
}

/// One description; the entry's range counts from the start of the data.
fn description(file: &Path, cursor: &mut Cursor) -> Result<Entry> {
    let malformed = |why: String| InferError::model(file, format!("the header is not valid: {why}"));
    let name = cursor.name("name of a tensor").map_err(malformed)?.to_owned();
    let dimensions = cursor.u32().map_err(malformed)?;
    if dimensions > DIMENSIONS {
        let expected = format!("at most {DIMENSIONS} dimensions");
        return Err(tensor_error(file, &name, expected, dimensions.to_string()));
    }
    let sizes: Vec<u64> =
        (0..dimensions).map(|_| cursor.u64()).collect::<std::result::Result<_, _>>().map_err(malformed)?;
    let number = cursor.u32().map_err(malformed)?;
    let offset = cursor.u64().map_err(malformed)?;
    let known = TYPES.iter().find(|(n, _)| *n == number);
    let Some((dtype, size)) = known.and_then(|(_, name)| Some((*name, unit(name)?))) else {
        let found = known.map_or(format!("type {number}"), |(_, name)| name.to_string());
        let read: Vec<&str> = Dtype::ALL.iter().map(|(name, _)| *name).collect();
        return Err(tensor_error(file, &name, format!("one of the types {}", read.join(", ")), found));
    };
    // The file counts dimensions from the innermost.
    let shape: Option<Vec<usize>> = sizes.iter().rev().map(|size| usize::try_from(*size).ok()).collect();
    let elements = shape.as_ref().and_then(|s| s.iter().try_fold(1usize, |product, size| product.checked_mul(*size)));
    let (Some(shape), Some(elements)) = (shape, elements) else {
        let found = format!("{dtype} {sizes:?}, whose size overflows");
        return Err(tensor_error(file, &name, "a shape that can be addressed", found));
    };
    let (len, bytes) = size;
    if !shape.last().copied().unwrap_or(1).is_multiple_of(len) {
        return Err(tensor_error(file, &name, format!("rows of whole blocks of {len}"), format!("{dtype} {shape:?}")));
    }
    let start = usize::try_from(offset).ok();
    let end = (elements / len).checked_mul(bytes).and_then(|size| start?.checked_add(size));
    let (Some(start), Some(end)) = (start, end) else {
        return Err(tensor_error(
            file,
            &name,
            "an offset that can be addressed",
            format!("{dtype} {shape:?} at {offset}"),
        ));
    };
    Ok(Entry { name, dtype: dtype.to_owned(), shape, elements, range: start..end, transposed: false })
}

/// Elements and bytes of a type's unit.
fn unit(name: &str) -> Option<(usize, usize)> {
    match (Dtype::named(name), name) {
        (Some(dtype), _) => Some((dtype.block_len(), dtype.size())),
        (None, "I8") => Some((1, 1)),
        (None, "I16") => Some((1, 2)),
        (None, "I32") => Some((1, 4)),
        (None, "I64" | "F64") => Some((1, 8)),
        _ => None,
    }
}

/// Checks that each tensor begins where the one before it ends, up to the alignment, and lies inside the file.
fn place(file: &Path, entries: &mut [Entry], start: usize, end: usize, alignment: usize) -> Result<()> {
    entries.sort_by(|a, b| (a.range.start, a.range.end, &a.name).cmp(&(b.range.start, b.range.end, &b.name)));
    let mut free = 0;
    for entry in entries {
        let range = &mut entry.range;
        if range.start != free {
            let kind = if range.start < free { "an overlap" } else { "a hole" };
            let expected = format!("data at offset {free}, the multiple of {alignment} where the tensor before ends");
            return Err(tensor_error(file, &entry.name, expected, format!("{kind}: offset {}", range.start)));
        }
        free = range.end.checked_next_multiple_of(alignment).unwrap_or(usize::MAX);
        let placed = range.start.checked_add(start).zip(range.end.checked_add(start));
        *range = match placed.filter(|(_, last)| *last <= end) {
            Some((first, last)) => first..last,
            None => {
                let expected = format!("data within the {} bytes after the header", end.saturating_sub(start));
                let found = format!("offsets {range:?}; the file may be truncated");
                return Err(tensor_error(file, &entry.name, expected, found));
            }
        };
    }
    Ok(())
}
