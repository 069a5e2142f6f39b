//! One tensor of a checkpoint.

use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::header::Entry;
use super::mapping::Mapping;
use super::{Dtype, blocks, tensor_error};
use crate::error::{InferError, Result};

/// Elements converted, or scanned, at a time.
const CHUNK: usize = 1024;

/// A named, typed range of a mapped file, or a rearranged copy of one. Cloning it copies pointers; it keeps its file
/// mapped.
#[derive(Clone)]
pub struct Tensor {
    mapping: Arc<Mapping>,
    entry: Arc<Entry>,
    /// The data of a rearranged tensor; the entry's range lies in it and not in the file.
    copy: Option<Arc<[u8]>>,
    in_f32: bool,
}

impl Tensor {
    pub(super) fn new(mapping: Arc<Mapping>, entry: Entry) -> Self {
        Self { mapping, entry: Arc::new(entry), copy: None, in_f32: false }
    }

    /// The name in the file.
    pub fn name(&self) -> &str {
        &self.entry.name
    }

    /// The file that holds the data.
    pub fn file(&self) -> &Path {
        self.mapping.path()
    }

    /// The dimensions, outermost first. A scalar has none.
    pub fn shape(&self) -> &[usize] {
        &self.entry.shape
    }

    /// The same tensor, whose values are to be multiplied in f32 whatever its type.
    pub(crate) fn in_f32(self) -> Self {
        Self { in_f32: true, ..self }
    }

    /// Whether its values are to be multiplied in f32.
    pub(crate) fn is_in_f32(&self) -> bool {
        self.in_f32
    }

    /// Whether the model's tensor is the transpose of this one: a matrix whose blocks lie along its columns.
    pub fn is_transposed(&self) -> bool {
        self.entry.transposed
    }

    /// The number of elements: the product of the shape, 1 for a scalar.
    pub fn len(&self) -> usize {
        self.entry.elements
    }

    /// Whether a dimension is zero.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The element type as the file spells it, such as `I64`; the type of its blocks where elements are quantised.
    pub fn dtype_name(&self) -> &str {
        &self.entry.dtype
    }

    /// The element type, or a [`TensorError`](InferError::TensorError) when its values cannot be read as floats.
    pub fn dtype(&self) -> Result<Dtype> {
        let name = self.dtype_name();
        Dtype::named(name)
            .ok_or_else(|| tensor_error(self.file(), self.name(), "dtype F32, F16 or BF16", format!("dtype {name}")))
    }

    /// The data as it lies in the file: little-endian, row-major, at any alignment; rows of whole [`blocks`] where
    /// elements are quantised.
    ///
    /// [`blocks`]: super::blocks
    pub fn bytes(&self) -> &[u8] {
        &self.copy.as_deref().unwrap_or(self.mapping.bytes())[self.entry.range.clone()]
    }

    /// Bytes of memory that [`bytes`](Self::bytes) may take once all are read: with a mapped file's, some of its neighbours'.
    pub(crate) fn resident_bytes(&self) -> usize {
        match &self.copy {
            Some(_) => self.entry.range.len(),
            None => self.mapping.mapped_with(self.entry.range.clone()).len(),
        }
    }

    /// Tells the system that the mapped pages under this tensor can be dropped from memory, once its values were copied
    /// elsewhere; see [`Checkpoint::release_pages`](super::Checkpoint::release_pages).
    pub fn release_pages(&self) {
        if self.copy.is_none() {
            self.mapping.release_range(self.entry.range.clone());
        }
    }

    /// The `rows` of the outermost dimension, without a copy.
    ///
    /// # Errors
    /// [`TensorError`](InferError::TensorError) when it has fewer rows, or they begin or end inside a block.
    pub fn rows(&self, rows: Range<usize>) -> Result<Self> {
        let count = self.shape().first().copied().unwrap_or(0);
        if rows.start > rows.end || rows.end > count {
            let expected = format!("rows {} to {}", rows.start, rows.end);
            return Err(tensor_error(self.file(), self.name(), expected, format!("{count} rows")));
        }
        let (start, end) = (self.row_start(rows.start)?, self.row_start(rows.end)?);
        let mut entry = (*self.entry).clone();
        entry.shape[0] = rows.len();
        entry.elements = entry.shape.iter().product();
        entry.range = self.entry.range.start + start..self.entry.range.start + end;
        Ok(Self { entry: Arc::new(entry), ..self.clone() })
    }

    /// Where in [`bytes`](Self::bytes) a row of the outermost dimension begins, or the last one ends.
    fn row_start(&self, row: usize) -> Result<usize> {
        let count = self.shape().first().copied().unwrap_or(0).max(1);
        let block = match self.dtype() {
            Ok(dtype) if dtype.is_block() => dtype,
            _ => return Ok(row * (self.bytes().len() / count)),
        };
        let element = row * (self.len() / count);
        if !element.is_multiple_of(block.block_len()) {
            let expected = format!("rows of whole blocks of {} elements", block.block_len());
            return Err(tensor_error(self.file(), self.name(), expected, format!("a cut at element {element}")));
        }
        Ok(element / block.block_len() * block.size())
    }

    /// A copy of another shape: its element i is this tensor's element `source(i)`, or zero. In the same dtype, or in
    /// F32 where elements come in blocks.
    ///
    /// # Errors
    /// [`TensorError`](InferError::TensorError) when the dtype is no float, [`OutOfMemory`](InferError::OutOfMemory).
    pub fn rearranged(&self, shape: &[usize], source: impl Fn(usize) -> Option<usize>) -> Result<Self> {
        let dtype = self.dtype()?;
        if dtype.is_block() {
            return self.mapped(|value| value)?.rearranged(shape, source);
        }
        self.copied(shape, dtype.size(), source)
    }

    /// A copy of `count` rows, in the same dtype: its row i is this tensor's row `source(i)`. Blocks stay whole.
    ///
    /// # Errors
    /// [`TensorError`](InferError::TensorError) when the dtype is no float or `source` names a row beyond the last,
    /// [`OutOfMemory`](InferError::OutOfMemory).
    pub fn rows_rearranged(&self, count: usize, source: impl Fn(usize) -> usize) -> Result<Self> {
        self.dtype()?;
        let rows = self.shape().first().copied().unwrap_or(0);
        if let Some(beyond) = (0..count).map(&source).find(|row| *row >= rows) {
            return Err(tensor_error(self.file(), self.name(), format!("row {beyond}"), format!("{rows} rows")));
        }
        let width = self.row_start(1)?;
        let mut shape = self.shape().to_vec();
        if let Some(first) = shape.first_mut() {
            *first = count;
        }
        if width == 0 || count == 0 {
            return self.copied(&shape, 1, |_| None);
        }
        self.copied(&shape, width, |row| Some(source(row)))
    }

    /// A copy of another shape, in the same dtype, made of units of `size` bytes: unit i is `source(i)`, or zeros.
    fn copied(&self, shape: &[usize], size: usize, source: impl Fn(usize) -> Option<usize>) -> Result<Self> {
        let elements: usize = shape.iter().product();
        let dtype = self.dtype()?;
        let len = elements / dtype.block_len() * dtype.size();
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(len).map_err(|_| InferError::OutOfMemory {
            what: format!("a rearranged copy of tensor `{}`", self.name()),
            bytes: len,
        })?;
        bytes.resize(len, 0);
        let data = self.bytes();
        for (i, to) in bytes.chunks_exact_mut(size).enumerate() {
            if let Some(from) = source(i) {
                to.copy_from_slice(&data[from * size..][..size]);
            }
        }
        Ok(self.owned(Entry { shape: shape.to_vec(), elements, ..(*self.entry).clone() }, bytes))
    }

    /// A tensor of this file whose data is a copy of its own.
    fn owned(&self, entry: Entry, bytes: Vec<u8>) -> Self {
        let entry = Entry { range: 0..bytes.len(), ..entry };
        Self {
            mapping: Arc::clone(&self.mapping),
            entry: Arc::new(entry),
            copy: Some(bytes.into()),
            in_f32: self.in_f32,
        }
    }

    /// Widens the `out.len()` elements from element `first` on into `out`: floats exactly, blocks to the values that they
    /// stand for.
    ///
    /// # Errors
    /// [`TensorError`](InferError::TensorError) when the dtype is no float or the tensor has too few elements; `out` is
    /// then unchanged.
    pub fn read_f32(&self, first: usize, out: &mut [f32]) -> Result<()> {
        let dtype = self.dtype()?;
        let Some(end) = first.checked_add(out.len()).filter(|&end| end <= self.len()) else {
            let expected = format!("{} elements from element {first} on", out.len());
            return Err(tensor_error(self.file(), self.name(), expected, format!("{} elements", self.len())));
        };
        if dtype.is_block() {
            return read_blocks(dtype, self.bytes(), first, out);
        }
        let bytes = &self.bytes()[first * dtype.size()..end * dtype.size()];
        match dtype {
            Dtype::F32 => {
                for (value, raw) in out.iter_mut().zip(bytes.as_chunks().0) {
                    *value = f32::from_le_bytes(*raw);
                }
            }
            Dtype::F16 => widen(bytes, out, f16::from_le_bytes, |half, out| half.convert_to_f32_slice(out)),
            _ => widen(bytes, out, bf16::from_le_bytes, |half, out| half.convert_to_f32_slice(out)),
        }
        Ok(())
    }

    /// All elements, widened as by [`read_f32`](Self::read_f32).
    ///
    /// # Errors
    /// As [`read_f32`](Self::read_f32), and [`OutOfMemory`](InferError::OutOfMemory).
    pub fn to_f32(&self) -> Result<Vec<f32>> {
        self.dtype()?;
        let mut values = Vec::new();
        values.try_reserve_exact(self.len()).map_err(|_| InferError::OutOfMemory {
            what: format!("tensor `{}` as f32", self.name()),
            bytes: self.len().saturating_mul(size_of::<f32>()),
        })?;
        values.resize(self.len(), 0.0);
        self.read_f32(0, &mut values)?;
        Ok(values)
    }

    /// As [`to_f32`](Self::to_f32), of values that have to be finite.
    ///
    /// # Errors
    /// [`TensorError`](InferError::TensorError) naming the first value that is not.
    pub fn to_finite_f32(&self) -> Result<Vec<f32>> {
        match self.first_non_finite()? {
            None => self.to_f32(),
            Some(at) => {
                let found = format!("NaN or an infinity at [{at}]");
                Err(tensor_error(self.file(), self.name(), "finite values", found))
            }
        }
    }

    /// A copy in F32 with each widened value through `f`.
    ///
    /// # Errors
    /// As [`to_f32`](Self::to_f32).
    pub fn mapped(&self, f: impl Fn(f32) -> f32) -> Result<Self> {
        let bytes: Vec<u8> = self.to_f32()?.into_iter().flat_map(|v| f(v).to_le_bytes()).collect();
        Ok(self.owned(Entry { dtype: "F32".to_string(), ..(*self.entry).clone() }, bytes))
    }

    /// Index of the first element that is NaN or infinite; of the first element of its block where a block has a scale that
    /// is.
    ///
    /// # Errors
    /// [`TensorError`](InferError::TensorError) when the dtype is no float.
    pub fn first_non_finite(&self) -> Result<Option<usize>> {
        let bytes = self.bytes();
        Ok(match self.dtype()? {
            Dtype::F32 => position(bytes, |raw| !f32::from_le_bytes(raw).is_finite()),
            Dtype::F16 => position(bytes, |raw| !f16::from_le_bytes(raw).is_finite()),
            Dtype::BF16 => position(bytes, |raw| !bf16::from_le_bytes(raw).is_finite()),
            dtype => blocks::first_bad_scale(dtype, bytes).map(|block| block * dtype.block_len()),
        })
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {:?} in {}", self.name(), self.dtype_name(), self.shape(), self.file().display())
    }
}

/// Widens through an aligned buffer on the stack: the conversion of a whole slice uses the CPU's instructions for it.
fn widen<H: Copy + Default>(
    bytes: &[u8],
    out: &mut [f32],
    from_le: impl Fn([u8; 2]) -> H,
    convert: impl Fn(&[H], &mut [f32]),
) {
    let mut buffer = [H::default(); CHUNK];
    for (raw, out) in bytes.as_chunks().0.chunks(CHUNK).zip(out.chunks_mut(CHUNK)) {
        let halves = &mut buffer[..raw.len()];
        for (half, raw) in halves.iter_mut().zip(raw) {
            *half = from_le(*raw);
        }
        convert(halves, out);
    }
}

/// The elements from `first` on of a tensor of blocks. Whole blocks go straight to `out`, those cut at the ends through a
/// buffer.
fn read_blocks(dtype: Dtype, bytes: &[u8], first: usize, out: &mut [f32]) -> Result<()> {
    let (len, size) = (dtype.block_len(), dtype.size());
    let mut buffer = [0.0; 256];
    let mut done = 0;
    while done < out.len() {
        let (block, skip) = ((first + done) / len, (first + done) % len);
        let left = out.len() - done;
        if skip == 0 && left >= len {
            let whole = left / len;
            let bytes = &bytes[block * size..(block + whole) * size];
            blocks::dequantise(dtype, bytes, &mut out[done..done + whole * len])?;
            done += whole * len;
        } else {
            let part = left.min(len - skip);
            blocks::dequantise(dtype, &bytes[block * size..(block + 1) * size], &mut buffer[..len])?;
            out[done..done + part].copy_from_slice(&buffer[skip..skip + part]);
            done += part;
        }
    }
    Ok(())
}

/// Index of the first element that `bad` holds for. A chunk is scanned without branches before it is searched.
fn position<const N: usize>(bytes: &[u8], bad: impl Fn([u8; N]) -> bool) -> Option<usize> {
    let elements = bytes.as_chunks().0;
    let chunk = elements.chunks(CHUNK).position(|chunk| chunk.iter().fold(false, |any, &raw| any | bad(raw)))?;
    let first = chunk * CHUNK;
    elements[first..].iter().position(|&raw| bad(raw)).map(|offset| first + offset)
}
