//! The header of a safetensors file, checked against the file before any tensor is handed out.
//!
//! The `safetensors` crate decides whether a header is valid. The checks here come first, refuse what it lets pass
//! (duplicate names, text before the opening brace), and name the tensor and the numbers.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::path::Path;

use safetensors::SafeTensors;
use serde::de::value::{Error as ValueError, StrDeserializer};
use serde::de::{Error as _, IntoDeserializer, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::{Dtype, tensor_error};
use crate::error::{InferError, Result};

/// Bytes of the number before the header, which holds the header's length.
const PREFIX: usize = 8;

/// Longest header the format allows, in bytes.
pub(super) const MAX_HEADER: u64 = 100_000_000;

/// The header key that is no tensor.
const METADATA: &str = "__metadata__";

/// The type and the shape of tensors whose bytes are blocks; docs/formats.md describes the key.
#[derive(Deserialize, Default)]
struct Metadata {
    #[serde(rename = "kin_infer.blocks")]
    blocks: Option<String>,
}

/// What [`Metadata`] says of one tensor.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Blocks {
    dtype: String,
    shape: Vec<usize>,
    #[serde(default)]
    transposed: bool,
}

/// One tensor: `range` lies inside the file and has the size that `shape` and `dtype` ask for.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) dtype: String,
    pub(super) shape: Vec<usize>,
    /// Product of the shape.
    pub(super) elements: usize,
    /// Bytes of the data, counted from the start of the file.
    pub(super) range: Range<usize>,
    /// Whether the model's tensor is the transpose of this one.
    pub(super) transposed: bool,
}

/// A JSON object over tensor names, in file order. A repeated name is an error.
pub(super) struct NameMap<V> {
    pub(super) pairs: Vec<(String, V)>,
    metadata: Metadata,
}

impl<'de, V: Deserialize<'de>> Deserialize<'de> for NameMap<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Pairs<V>(PhantomData<V>);

        impl<'de, V: Deserialize<'de>> Visitor<'de> for Pairs<V> {
            type Value = NameMap<V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object whose keys are tensor names")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Self::Value, A::Error> {
                let mut pairs = Vec::new();
                let mut metadata = Metadata::default();
                let mut seen = HashSet::new();
                while let Some(name) = map.next_key::<String>()? {
                    if !seen.insert(name.clone()) {
                        return Err(A::Error::custom(format!("tensor `{name}` is named twice")));
                    }
                    if name == METADATA {
                        metadata = map.next_value::<Option<Metadata>>()?.unwrap_or_default();
                        continue;
                    }
                    let value = map.next_value().map_err(|e| A::Error::custom(format!("tensor `{name}`: {e}")))?;
                    pairs.push((name, value));
                }
                Ok(NameMap { pairs, metadata })
            }
        }

        deserializer.deserialize_map(Pairs(PhantomData))
    }
}

/// What the header says of one tensor.
#[derive(Deserialize)]
struct Claim {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: (usize, usize),
}

/// Parses and checks the header of the safetensors file `bytes`. The entries come in the order of their data.
pub(super) fn read(file: &Path, bytes: &[u8]) -> Result<Vec<Entry>> {
    let header = split(file, bytes)?;
    let start = PREFIX + header.len();
    let data = bytes.len() - start;
    let NameMap { pairs, metadata } = serde_json::from_slice::<NameMap<Claim>>(header)
        .map_err(|e| InferError::model(file, format!("the header is not valid: {e}")))?;

    let mut entries = Vec::with_capacity(pairs.len());
    for (name, claim) in pairs {
        entries.push(check(file, name, claim, data)?);
    }
    if let Some(blocks) = metadata.blocks {
        retype(file, &blocks, &mut entries)?;
    }
    entries.sort_by(|a, b| (a.range.start, a.range.end, &a.name).cmp(&(b.range.start, b.range.end, &b.name)));
    check_cover(file, &entries, data)?;

    SafeTensors::read_metadata(bytes).map_err(|e| InferError::model(file, format!("the header is not valid: {e}")))?;

    for entry in &mut entries {
        entry.range = start + entry.range.start..start + entry.range.end;
    }
    Ok(entries)
}

/// The header's bytes.
fn split<'a>(file: &Path, bytes: &'a [u8]) -> Result<&'a [u8]> {
    let Some((prefix, rest)) = bytes.split_first_chunk::<PREFIX>() else {
        let found = bytes.len();
        return Err(InferError::model(
            file,
            format!("expected a safetensors file of at least {PREFIX} bytes, found {found} bytes"),
        ));
    };
    if bytes.starts_with(b"version https://git-lfs") {
        return Err(InferError::model(
            file,
            "expected a safetensors file, found a git-lfs pointer to one; `git lfs pull` fetches the file",
        ));
    }
    let length = u64::from_le_bytes(*prefix);
    if length > MAX_HEADER {
        return Err(InferError::model(
            file,
            format!(
                "not a safetensors file: expected a header of at most {MAX_HEADER} bytes, found a length of {length}"
            ),
        ));
    }
    let header = usize::try_from(length).ok().and_then(|n| rest.get(..n)).ok_or_else(|| {
        let found = rest.len();
        InferError::model(file, format!("the header ends beyond the file: expected {length} bytes, found {found}"))
    })?;
    match header.first() {
        Some(b'{') => Ok(header),
        Some(byte) => {
            Err(InferError::model(file, format!("expected a header that starts with `{{`, found byte {byte:#04x}")))
        }
        None => Err(InferError::model(file, "expected a header that starts with `{`, found an empty header")),
    }
}

/// Checks one claim by itself; the entry's range counts from the start of the data.
fn check(file: &Path, name: String, claim: Claim, data: usize) -> Result<Entry> {
    let Claim { dtype, shape, data_offsets: (start, end) } = claim;
    let text: StrDeserializer<'_, ValueError> = dtype.as_str().into_deserializer();
    let Ok(known) = safetensors::Dtype::deserialize(text) else {
        return Err(tensor_error(file, &name, "a dtype of the safetensors format", format!("`{dtype}`")));
    };
    let elements = shape.iter().try_fold(1usize, |product, &dim| product.checked_mul(dim));
    let Some((elements, bits)) = elements.and_then(|n| Some((n, n.checked_mul(known.bitsize())?))) else {
        let found = format!("{dtype} {shape:?}, whose size overflows");
        return Err(tensor_error(file, &name, "a shape that can be addressed", found));
    };
    if bits % 8 != 0 {
        return Err(tensor_error(file, &name, "whole bytes", format!("{dtype} {shape:?} = {bits} bits")));
    }
    if start > end {
        return Err(tensor_error(file, &name, "data offsets in ascending order", format!("[{start}, {end}]")));
    }
    if end > data {
        let expected = format!("data offsets within the {data} bytes after the header");
        return Err(tensor_error(file, &name, expected, format!("[{start}, {end}]; the file may be truncated")));
    }
    if end - start != bits / 8 {
        let expected = format!("{} bytes for {dtype} {shape:?}", bits / 8);
        return Err(tensor_error(file, &name, expected, format!("{} bytes at [{start}, {end}]", end - start)));
    }
    Ok(Entry { name, dtype, shape, elements, range: start..end, transposed: false })
}

/// Gives the entries that `blocks` describes, which are U8 in the header, their types and shapes.
fn retype(file: &Path, blocks: &str, entries: &mut [Entry]) -> Result<()> {
    let NameMap { pairs, .. } = serde_json::from_str::<NameMap<Blocks>>(blocks)
        .map_err(|e| InferError::model(file, format!("the metadata key `kin_infer.blocks` is not valid: {e}")))?;
    let mut places: HashMap<String, usize> = entries.iter().enumerate().map(|(i, e)| (e.name.clone(), i)).collect();
    for (name, Blocks { dtype, shape, transposed }) in pairs {
        let Some(entry) = places.remove(&name).map(|place| &mut entries[place]) else {
            let found = "it only in the metadata key `kin_infer.blocks`";
            return Err(tensor_error(file, &name, "a tensor of this name", found));
        };
        let Some(known) = Dtype::named(&dtype).filter(|d| d.is_block()) else {
            return Err(tensor_error(file, &name, "a type that comes in blocks", format!("`{dtype}`")));
        };
        let bytes = known.bytes_of(&shape).filter(|_| entry.dtype == "U8");
        if bytes != Some(entry.range.len()) {
            let found = format!("{} bytes of {}", entry.range.len(), entry.dtype);
            return Err(tensor_error(file, &name, format!("U8 bytes of whole blocks, {dtype} {shape:?}"), found));
        }
        entry.elements = shape.iter().product();
        (entry.dtype, entry.shape, entry.transposed) = (dtype, shape, transposed);
    }
    Ok(())
}

/// Checks that the entries, sorted by range, cover the data without overlap, hole or rest.
fn check_cover(file: &Path, entries: &[Entry], data: usize) -> Result<()> {
    let mut covered = 0;
    let mut before = "the header";
    for Entry { name, range, .. } in entries {
        if range.start != covered {
            let kind = if range.start < covered { "an overlap" } else { "a hole" };
            let expected = format!("data at offset {covered}, where {before} ends");
            let found = format!("{kind}: data offsets [{}, {}]", range.start, range.end);
            return Err(tensor_error(file, name, expected, found));
        }
        covered = range.end;
        before = name;
    }
    if covered != data {
        let detail = format!("expected {covered} bytes of data after the header, found {data}");
        return Err(InferError::model(file, detail));
    }
    Ok(())
}
