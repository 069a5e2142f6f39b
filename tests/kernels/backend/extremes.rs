//! Sizes whose sums and products leave the range of usize, and rows in no order: errors, never a panic.

use kin_infer::gpu::{
    AttentionShape, Columns, GpuCompute, KeyWindow, Norm, NormKind, PoolingMode, Rope, RopeLayout, ScoreBias, Segments,
    Slices,
};

use super::definition::on_every_backend;
use super::errors::{refused, zeros};
use super::rows::{Rows, check_unfold};

const HUGE: [usize; 3] = [usize::MAX, usize::MAX / 2 + 1, usize::MAX / 4 + 1];

fn norms(c: &dyn GpuCompute) {
    let gamma = zeros(c, 4);
    let norm = Norm { kind: NormKind::RmsNorm, gamma: &gamma, beta: None, eps: 1e-5 };
    for huge in HUGE {
        for slices in [
            Slices { first: huge, count: 1, stride: 12 },
            Slices { first: 1, count: huge, stride: 12 },
            Slices { first: huge, count: huge, stride: 12 },
            Slices { first: 0, count: 1, stride: huge },
        ] {
            refused(c.norm(&mut zeros(c, 12), slices, norm), &["norm"]);
        }
    }
}

fn copies_and_neighbourhoods(c: &dyn GpuCompute) {
    let segments = Segments::from_lengths([2, 1]);
    let positions = c.upload_index(&[0, 1, 0]).unwrap();
    for huge in HUGE {
        refused(c.copy_rows(&zeros(c, 12), 4, huge, &mut zeros(c, 8)), &["copy_rows"]);
        refused(c.copy_rows(&zeros(c, 12), huge, 1, &mut zeros(c, 0)), &["copy_rows"]);
        refused(c.unfold(&zeros(c, 12), 4, &segments, &positions, huge, &mut zeros(c, 12)), &["unfold"]);
        refused(c.unfold(&zeros(c, 12), huge, &segments, &positions, 1, &mut zeros(c, 12)), &["unfold"]);
    }
}

/// Positions next to the ends of their range have no neighbours beyond it.
#[test]
fn neighbourhoods_at_the_ends_of_the_range() {
    let positions = vec![0, 1, u32::MAX, 0, 1, u32::MAX - 1, u32::MAX];
    check_unfold(&Rows { name: "the ends of the range", positions, lengths: vec![3, 4] }, 1);
}

/// As attention's positions do, those of a neighbourhood ascend within a sequence.
fn neighbourhoods_in_no_order(c: &dyn GpuCompute) {
    let segments = Segments::from_lengths([2, 3]);
    for positions in [[1, 0, 0, 1, 2], [0, 0, 0, 1, 2], [0, 1, 2, 1, 0]] {
        let positions = c.upload_index(&positions).unwrap();
        refused(c.unfold(&zeros(c, 20), 4, &segments, &positions, 3, &mut zeros(c, 60)), &["unfold", "ascend"]);
    }
}

fn products(c: &dyn GpuCompute) {
    let tensor = super::definition::tensor(&[1.0; 24], &[4, 6], safetensors::tensor::Dtype::F32).0;
    let weight = c.prepare_weight(&[tensor]).unwrap();
    for rows in HUGE {
        refused(c.matmul(&zeros(c, 6), rows, &weight, kin_infer::gpu::Epilogue::NONE, &mut zeros(c, 4)), &["matmul"]);
    }
}

fn rotations_and_pools(c: &dyn GpuCompute) {
    let (table, positions) = (zeros(c, 16), c.upload_index(&[0, 1]).unwrap());
    let (cos, sin) = (&table, &table);
    let layout = RopeLayout::Halves;
    let good =
        Rope { cos, sin, positions: &positions, first: 0, stride: 8, heads: 1, head_dim: 8, rotary_dim: 8, layout };
    for huge in HUGE {
        for bad in [Rope { first: huge, ..good }, Rope { heads: huge, ..good }, Rope { stride: huge, ..good }] {
            refused(c.rope(&mut zeros(c, 16), &bad), &["rope"]);
        }
        let ranges = Segments::from_lengths([2, 2]);
        let mode = PoolingMode::Mean;
        for (first, stride) in [(huge, 4), (0, huge), (huge, huge)] {
            refused(c.pool(&zeros(c, 16), 4, &ranges, 0, mode, (&mut zeros(c, 8), first, stride)), &["pool"]);
        }
        refused(c.pool(&zeros(c, 16), huge, &ranges, 0, mode, (&mut zeros(c, 8), 0, 4)), &["pool"]);
    }
}

fn attention(c: &dyn GpuCompute) {
    let segments = Segments::from_lengths([3]);
    let positions = c.upload_index(&[0, 1, 2]).unwrap();
    let good = AttentionShape {
        segments: &segments,
        heads: 2,
        kv_heads: 2,
        head_dim: 4,
        scale: 1.0,
        positions: &positions,
        bias: ScoreBias::None,
        window: KeyWindow::ALL,
        softcap: None,
    };
    let buffer = zeros(c, 24);
    let view = Columns { buffer: &buffer, first: 0, stride: 8 };
    let run = |shape: &AttentionShape, view: Columns| c.attention(view, view, view, shape, &mut zeros(c, 24));
    run(&good, view).unwrap();
    for huge in HUGE {
        refused(run(&AttentionShape { head_dim: huge, ..good }, view), &["attention"]);
        refused(run(&AttentionShape { heads: huge, kv_heads: huge, ..good }, view), &["attention"]);
        refused(run(&good, Columns { first: huge, ..view }), &["attention"]);
        refused(run(&good, Columns { stride: huge, ..view }), &["attention"]);
    }
}

on_every_backend!(
    norms,
    copies_and_neighbourhoods,
    neighbourhoods_in_no_order,
    products,
    rotations_and_pools,
    attention
);
