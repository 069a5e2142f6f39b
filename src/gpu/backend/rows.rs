//! Elementwise operations and operations on rows: kernels/elementwise.h, kernels/rows.h, kernels/tokens.h.

use super::args::*;
use super::memory::Pooled;
use super::weights::StoredTable;
use super::{DeviceCompute, at, indices, out, word};
use crate::error::Result;
use crate::gpu::{
    Activation, Buffer, IndexBuffer, Norm, NormKind, PoolingMode, Rope, RopeLayout, Segments, Slices, Table,
};

/// Threads of a threadgroup of an elementwise kernel.
const EACH: usize = 256;

/// Threads of a threadgroup over rows and columns: 4 rows of 64 columns.
const ROWS_BY_COLUMNS: [u32; 3] = [64, 4, 1];

/// The grid of such threadgroups.
fn row_grid(rows: usize, cols: usize) -> [usize; 3] {
    [rows.div_ceil(4), cols.div_ceil(64), 1]
}

/// The number of an activation in kernels.
pub(super) fn activation_number(activation: Activation) -> u32 {
    match activation {
        Activation::Identity => ACTIVATION_IDENTITY,
        Activation::Relu => ACTIVATION_RELU,
        Activation::GeluErf => ACTIVATION_GELU_ERF,
        Activation::GeluTanh => ACTIVATION_GELU_TANH,
        Activation::Silu => ACTIVATION_SILU,
        Activation::Sigmoid => ACTIVATION_SIGMOID,
        Activation::Tanh => ACTIVATION_TANH,
    }
}

fn pooling_number(mode: PoolingMode) -> u32 {
    match mode {
        PoolingMode::Cls => POOL_CLS,
        PoolingMode::Max => POOL_MAX,
        PoolingMode::Mean => POOL_MEAN,
        PoolingMode::MeanSqrtLen => POOL_MEAN_SQRT_LEN,
        PoolingMode::WeightedMean => POOL_WEIGHTED_MEAN,
        PoolingMode::LastToken => POOL_LAST,
    }
}

impl DeviceCompute {
    pub(super) fn activate_values(&self, x: &mut Buffer, activation: Activation) -> Result<()> {
        let args = ActivateArgs { count: word(x.len()), activation: activation_number(activation) };
        let grid = [x.len().div_ceil(EACH), 1, 1];
        self.launch("activate_values", grid, [EACH as u32, 1, 1], &[out(x)?], &args)
    }

    /// `add_values` or `multiply_values`.
    pub(super) fn combine(&self, kernel: &'static str, x: &mut Buffer, y: &Buffer) -> Result<()> {
        let args = CountArgs { count: word(x.len()) };
        let grid = [x.len().div_ceil(EACH), 1, 1];
        self.launch(kernel, grid, [EACH as u32, 1, 1], &[out(x)?, at(y)?], &args)
    }

    pub(super) fn scale_values(&self, x: &mut Buffer, factor: f32) -> Result<()> {
        let args = ScaleArgs { count: word(x.len()), factor };
        let grid = [x.len().div_ceil(EACH), 1, 1];
        self.launch("scale_values", grid, [EACH as u32, 1, 1], &[out(x)?], &args)
    }

    pub(super) fn norm_slices(&self, x: &mut Buffer, slices: Slices, norm: &Norm) -> Result<()> {
        let (width, rows) = (norm.gamma.len(), x.len() / slices.stride);
        let count = rows * slices.count;
        if width == 0 || count == 0 {
            return Ok(());
        }
        let (x, gamma) = (out(x)?, at(norm.gamma)?);
        let beta = norm.beta.map(at).transpose()?;
        let args = NormArgs {
            slices: word(count),
            count: word(slices.count),
            first: word(slices.first),
            stride: word(slices.stride),
            width: word(width),
            layer_norm: (norm.kind == NormKind::LayerNorm).into(),
            has_beta: (beta.is_some() && norm.kind == NormKind::LayerNorm).into(),
            eps: norm.eps,
        };
        let buffers = [x, gamma, beta.unwrap_or(gamma)];
        self.launch("norm_slices", [count.div_ceil(8), 1, 1], [256, 1, 1], &buffers, &args)
    }

    pub(super) fn l2_normalize_rows(&self, x: &mut Buffer, cols: usize) -> Result<()> {
        let rows = x.len() / cols;
        let args = RowsArgs { rows: word(rows), width: word(cols) };
        self.launch("l2_normalize_rows", [rows.div_ceil(8), 1, 1], [256, 1, 1], &[out(x)?], &args)
    }

    pub(super) fn arg_max_of_rows(&self, x: &Buffer, cols: usize, among: usize) -> Result<Vec<Option<u32>>> {
        let rows = x.len() / cols;
        if rows == 0 {
            return Ok(Vec::new());
        }
        let found = self.pool.take(rows * 4, "places of the largest values")?;
        let args = ArgMaxArgs { cols: word(cols), among: word(among) };
        let buffers = [at(x)?, found.binding()];
        self.launch("arg_max_rows", [rows, 1, 1], [EACH as u32, 1, 1], &buffers, &args)?;
        let bytes = self.pool.read(found.binding(), rows)?;
        let place = |raw: &[u8; 4]| Some(u32::from_ne_bytes(*raw)).filter(|place| *place != u32::MAX);
        Ok(bytes.as_chunks().0.iter().map(place).collect())
    }

    pub(super) fn gather_rows(
        &self,
        table: &Table,
        ids: &IndexBuffer,
        accumulate: bool,
        to: &mut Buffer,
    ) -> Result<()> {
        let (stored, cols) = (table.storage::<StoredTable>()?, table.cols());
        let args =
            GatherArgs { rows: word(ids.len()), cols: word(cols), kind: stored.kind, accumulate: accumulate.into() };
        let (data, scales) = stored.bindings();
        let buffers = [data, scales, indices(ids)?.device.binding(), out(to)?];
        self.launch("gather_rows", row_grid(ids.len(), cols), ROWS_BY_COLUMNS, &buffers, &args)
    }

    /// `sources[r]` is the row of `x` that row r takes, `u32::MAX` for none.
    pub(super) fn unfold_rows(
        &self,
        x: &Buffer,
        cols: usize,
        segments: &Segments,
        positions: &IndexBuffer,
        taps: usize,
        to: &mut Buffer,
    ) -> Result<()> {
        let neighbours = segments.neighbours(&indices(positions)?.host, taps);
        let sources: Vec<u32> = neighbours.map(|row| row.map_or(u32::MAX, word)).collect();
        let args = RowsArgs { rows: word(sources.len()), width: word(cols) };
        let table = self.words(&sources)?;
        let buffers = [at(x)?, table.binding(), out(to)?];
        self.launch("unfold_rows", row_grid(sources.len(), cols), ROWS_BY_COLUMNS, &buffers, &args)
    }

    pub(super) fn rotate(&self, x: &mut Buffer, r: &Rope) -> Result<()> {
        let (rows, half) = (r.positions.len(), r.rotary_dim / 2);
        let args = RopeArgs {
            rows: word(rows),
            stride: word(r.stride),
            first: word(r.first),
            heads: word(r.heads),
            head_dim: word(r.head_dim),
            half_dim: word(half),
            interleaved: (r.layout == RopeLayout::Interleaved).into(),
        };
        let positions: &Pooled = &indices(r.positions)?.device;
        let buffers = [out(x)?, at(r.cos)?, at(r.sin)?, positions.binding()];
        self.launch("rotate_pairs", row_grid(rows, r.heads * half), ROWS_BY_COLUMNS, &buffers, &args)
    }

    pub(super) fn pool_rows(
        &self,
        x: &Buffer,
        cols: usize,
        ranges: &Segments,
        skip: usize,
        mode: PoolingMode,
        (to, first, stride): (&mut Buffer, usize, usize),
    ) -> Result<()> {
        let ends = ranges.iter().map(|r| word(r.end));
        let offsets = self.words(&std::iter::once(0).chain(ends).collect::<Vec<_>>())?;
        let args = PoolArgs {
            rows: word(ranges.len()),
            cols: word(cols),
            skip: word(skip),
            mode: pooling_number(mode),
            out_first: word(first),
            out_stride: word(stride),
        };
        let buffers = [at(x)?, offsets.binding(), out(to)?];
        self.launch("pool_rows", row_grid(ranges.len(), cols), ROWS_BY_COLUMNS, &buffers, &args)
    }
}
