//! Sizes that contradict each other, ids beyond a table, and handles of another backend: errors before anything is
//! computed, never a panic.

use kin_infer::gpu::{
    Activation, Buffer, Epilogue, GpuCompute, IndexBuffer, Norm, NormKind, PoolingMode, Rope, RopeLayout, Segments,
    Slices, Table, Weight,
};
use kin_infer::{InferError, Result};
use safetensors::tensor::Dtype;

use super::definition::{on_every_backend, tensor};

#[track_caller]
pub fn refused<T>(result: Result<T>, parts: &[&str]) {
    match result {
        Ok(_) => panic!("accepted; {parts:?} was expected"),
        Err(error @ InferError::InvalidArgument(_)) => {
            let message = error.to_string();
            assert!(parts.iter().all(|p| message.contains(p)), "{parts:?} is not in: {message}");
        }
        Err(other) => panic!("another variant: {other:?}"),
    }
}

pub fn zeros(c: &dyn GpuCompute, len: usize) -> Buffer {
    c.upload(&vec![0.0; len]).unwrap()
}

fn weight(c: &dyn GpuCompute, n: usize, k: usize) -> Weight {
    c.prepare_weight(&[tensor(&vec![1.0; n * k], &[n, k], Dtype::F32).0]).unwrap()
}

fn matmul(c: &dyn GpuCompute) {
    let w = weight(c, 20, 6);
    let b = |len| zeros(c, len);
    let run = |x: usize, [bias, factor, residual]: [Option<usize>; 3], out: usize| {
        let [bias, factor, residual] = [bias, factor, residual].map(|len| len.map(b));
        let activation = Activation::Relu;
        let e = Epilogue { bias: bias.as_ref(), activation, factor: factor.as_ref(), residual: residual.as_ref() };
        c.matmul(&b(x), 3, &w, e, &mut b(out))
    };
    run(18, [Some(20), Some(60), Some(60)], 60).unwrap();
    refused(run(17, [None; 3], 60), &["matmul", "input", "17", "18"]);
    refused(run(18, [None; 3], 59), &["matmul", "output", "59", "60"]);
    refused(run(18, [Some(19), None, None], 60), &["matmul", "bias", "19", "20"]);
    refused(run(18, [None, Some(59), None], 60), &["matmul", "factor", "59", "60"]);
    refused(run(18, [None, None, Some(59)], 60), &["matmul", "residual", "59", "60"]);
    c.matmul(&b(0), 0, &w, Epilogue::NONE, &mut b(0)).unwrap();
}

fn arg_max(c: &dyn GpuCompute) {
    let x = zeros(c, 12);
    refused(c.arg_max(&x, 5, 5), &["arg_max", "12", "rows of 5"]);
    refused(c.arg_max(&x, 0, 0), &["arg_max", "12", "rows of 0"]);
    refused(c.arg_max(&x, 4, 0), &["arg_max", "first 0 of 4"]);
    refused(c.arg_max(&x, 4, 5), &["arg_max", "first 5 of 4"]);
    assert_eq!(c.arg_max(&x, 4, 4).unwrap(), [Some(0); 3]);
    assert_eq!(c.arg_max(&zeros(c, 0), 4, 4).unwrap(), []);
}

fn weights_and_tables(c: &dyn GpuCompute) {
    let t = |shape: &[usize]| tensor(&vec![1.0; shape.iter().product()], shape, Dtype::F32).0;
    refused(c.prepare_weight(&[]), &["prepare_weight"]);
    refused(c.prepare_weight(&[t(&[6])]), &["[6]"]);
    refused(c.prepare_weight(&[t(&[2, 3, 4])]), &["[2, 3, 4]"]);
    refused(c.prepare_weight(&[t(&[2, 3]), t(&[2, 4])]), &["[2, 3]", "[2, 4]"]);
    refused(c.prepare_table(&t(&[6])), &["prepare_table", "[6]"]);
    // No rows, or no columns, are a matrix still.
    assert_eq!(c.prepare_weight(&[t(&[0, 3])]).unwrap().n(), 0);
    assert_eq!(c.prepare_weight(&[t(&[3, 0])]).unwrap().k(), 0);
    assert_eq!(c.prepare_table(&t(&[0, 3])).unwrap().rows(), 0);
}

fn gather(c: &dyn GpuCompute) {
    let table = c.prepare_table(&tensor(&[1.0; 15], &[5, 3], Dtype::F16).0).unwrap();
    let run = |ids: &[u32], out: usize| c.gather(&table, &c.upload_index(ids).unwrap(), false, &mut zeros(c, out));
    run(&[0, 4], 6).unwrap();
    run(&[], 0).unwrap();
    refused(run(&[0, 5], 6), &["gather", "table", "5", "6"]);
    refused(run(&[u32::MAX], 3), &["gather", "table"]);
    refused(run(&[0, 4], 5), &["gather", "output", "5", "6"]);
}

fn elementwise_and_norms(c: &dyn GpuCompute) {
    let b = |len| zeros(c, len);
    refused(c.add(&mut b(4), &b(3)), &["add", "3", "4"]);
    refused(c.mul(&mut b(4), &b(3)), &["mul", "3", "4"]);
    let (gamma, short) = (b(4), b(3));
    let norm = Norm { kind: NormKind::LayerNorm, gamma: &gamma, beta: None, eps: 1e-5 };
    refused(c.norm_rows(&mut b(4), Norm { beta: Some(&short), ..norm }), &["norm", "beta", "3", "4"]);
    refused(c.read(&b(3), &mut [0.0; 4]), &["read", "3", "4"]);
    c.add(&mut b(0), &b(0)).unwrap();
    c.norm_rows(&mut b(0), norm).unwrap();
    let run = |len: usize, first: usize, count: usize, stride: usize| {
        c.norm(&mut b(len), Slices { first, count, stride }, norm)
    };
    run(26, 5, 2, 13).unwrap();
    run(0, 5, 2, 13).unwrap();
    refused(run(25, 5, 2, 13), &["norm", "25", "13"]);
    refused(run(26, 5, 2, 0), &["norm", "26", "0"]);
    refused(run(26, 6, 2, 13), &["norm", "a row", "13", "14"]);
    refused(run(26, 2, 3, 13), &["norm", "a row", "13", "14"]);
    c.l2_normalize(&mut b(0), 4).unwrap();
}

fn rope(c: &dyn GpuCompute) {
    let positions = &c.upload_index(&[0, 3]).unwrap();
    let (table, short) = (zeros(c, 4 * 4), zeros(c, 4 * 4 - 1));
    let good = Rope {
        cos: &table,
        sin: &table,
        positions,
        first: 4,
        stride: 20,
        heads: 2,
        head_dim: 8,
        rotary_dim: 8,
        layout: RopeLayout::Halves,
    };
    let run = |len: usize, rope: &Rope| c.rope(&mut zeros(c, len), rope);
    run(40, &good).unwrap();
    refused(run(39, &good), &["rope", "matrix", "39", "40"]);
    refused(run(40, &Rope { cos: &short, ..good }), &["rope", "cosine", "15", "16"]);
    refused(run(40, &Rope { sin: &short, ..good }), &["rope", "sine"]);
    for bad in [
        Rope { rotary_dim: 7, ..good },
        Rope { rotary_dim: 10, ..good },
        Rope { first: 5, ..good },
        Rope { heads: 3, ..good },
    ] {
        refused(run(40, &bad), &["rope", "does not fit"]);
    }
}

fn copy_rows(c: &dyn GpuCompute) {
    let run =
        |x: usize, cols: usize, first: usize, out: usize| c.copy_rows(&zeros(c, x), cols, first, &mut zeros(c, out));
    run(20, 4, 2, 12).unwrap();
    run(20, 4, 5, 0).unwrap();
    refused(run(20, 4, 3, 12), &["copy_rows", "input", "20", "24"]);
    refused(run(20, 4, 6, 0), &["copy_rows", "input", "20", "24"]);
    refused(run(20, 4, 0, 11), &["copy_rows", "11", "4"]);
    refused(run(20, 0, 0, 0), &["copy_rows", "0"]);
}

fn unfold(c: &dyn GpuCompute) {
    let segments = Segments::from_lengths([2, 3]);
    let run = |x: usize, positions: &[u32], taps: usize, out: usize| {
        c.unfold(&zeros(c, x), 4, &segments, &c.upload_index(positions).unwrap(), taps, &mut zeros(c, out))
    };
    run(20, &[0, 1, 0, 1, 2], 3, 60).unwrap();
    run(20, &[0, 1, 0, 1, 2], 0, 0).unwrap();
    refused(run(19, &[0, 1, 0, 1, 2], 3, 60), &["unfold", "input", "19", "20"]);
    refused(run(20, &[0, 1, 0, 1], 3, 60), &["unfold", "positions", "4", "5"]);
    refused(run(20, &[0, 1, 0, 1, 2], 3, 59), &["unfold", "output", "59", "60"]);
}

fn pool(c: &dyn GpuCompute) {
    let ranges = Segments::from_lengths([2, 3]);
    let run = |x: usize, skip: usize, out: usize, first: usize, stride: usize| {
        let mut out = zeros(c, out);
        c.pool(&zeros(c, x), 4, &ranges, skip, PoolingMode::Mean, (&mut out, first, stride))
    };
    run(20, 1, 8, 0, 4).unwrap();
    refused(run(19, 0, 8, 0, 4), &["pool", "input", "19", "20"]);
    refused(run(20, 0, 7, 0, 4), &["pool", "output", "7", "8"]);
    refused(run(20, 0, 8, 1, 4), &["pool", "row of the output"]);
    match run(20, 2, 8, 0, 4) {
        Err(InferError::InputError { item: 0, detail }) => assert!(detail.contains("2 tokens"), "{detail}"),
        other => panic!("{other:?}"),
    }
    let mut out = zeros(c, 8);
    let empty = Segments::from_lengths([2, 0]);
    let result = c.pool(&zeros(c, 8), 4, &empty, 0, PoolingMode::Cls, (&mut out, 0, 4));
    assert!(matches!(result, Err(InferError::InputError { item: 1, .. })), "{result:?}");
}

/// Handles that another backend made.
fn foreign_handles(c: &dyn GpuCompute) {
    let buffer = || Buffer::new(64, ());
    let index = IndexBuffer::new(4, 1, ());
    let mine = || zeros(c, 64);
    let what = &["another backend"];
    let w = weight(c, 4, 4);
    refused(c.read(&buffer(), &mut [0.0; 4]), what);
    refused(c.matmul(&buffer(), 4, &w, Epilogue::NONE, &mut mine()), what);
    refused(c.matmul(&mine(), 4, &w, Epilogue::NONE, &mut buffer()), what);
    refused(c.matmul(&mine(), 4, &Weight::new(4, 4, 0, ()), Epilogue::NONE, &mut mine()), what);
    let foreign = buffer();
    refused(c.matmul(&mine(), 4, &w, Epilogue { bias: Some(&foreign), ..Epilogue::NONE }, &mut mine()), what);
    refused(c.matmul(&mine(), 4, &w, Epilogue { factor: Some(&foreign), ..Epilogue::NONE }, &mut mine()), what);
    refused(c.matmul(&mine(), 4, &w, Epilogue { residual: Some(&foreign), ..Epilogue::NONE }, &mut mine()), what);
    let table = c.prepare_table(&tensor(&[1.0; 16], &[4, 4], Dtype::F32).0).unwrap();
    let ids = c.upload_index(&[0, 1, 2, 3]).unwrap();
    refused(c.gather(&Table::new(4, 4, ()), &ids, false, &mut mine()), what);
    refused(c.gather(&table, &index, false, &mut mine()), what);
    refused(c.gather(&table, &ids, false, &mut buffer()), what);
    let (gamma, own) = (buffer(), mine());
    let norm = Norm { kind: NormKind::LayerNorm, gamma: &own, beta: None, eps: 1e-5 };
    refused(c.norm_rows(&mut buffer(), norm), what);
    refused(c.norm_rows(&mut mine(), Norm { gamma: &gamma, ..norm }), what);
    refused(c.norm_rows(&mut mine(), Norm { beta: Some(&gamma), ..norm }), what);
    refused(c.norm_rows(&mut mine(), Norm { kind: NormKind::RmsNorm, gamma: &gamma, ..norm }), what);
    refused(c.activate(&mut buffer(), Activation::Tanh), what);
    refused(c.add(&mut mine(), &buffer()), what);
    refused(c.mul(&mut buffer(), &mine()), what);
    refused(c.l2_normalize(&mut buffer(), 4), what);
    refused(c.arg_max(&buffer(), 4, 4), what);
    let ranges = Segments::from_lengths([4]);
    refused(c.pool(&buffer(), 4, &ranges, 0, PoolingMode::Mean, (&mut mine(), 0, 4)), what);
    refused(c.pool(&mine(), 4, &ranges, 0, PoolingMode::Mean, (&mut buffer(), 0, 4)), what);
    refused(c.copy_rows(&buffer(), 4, 0, &mut mine()), what);
    refused(c.copy_rows(&mine(), 4, 0, &mut buffer()), what);
    let positions = c.upload_index(&[0, 1, 2, 3]).unwrap();
    refused(c.unfold(&buffer(), 4, &ranges, &positions, 1, &mut mine()), what);
    refused(c.unfold(&mine(), 4, &ranges, &index, 1, &mut mine()), what);
    refused(c.unfold(&mine(), 4, &ranges, &positions, 1, &mut buffer()), what);
}

on_every_backend!(
    matmul,
    weights_and_tables,
    arg_max,
    gather,
    elementwise_and_norms,
    rope,
    copy_rows,
    unfold,
    pool,
    foreign_handles
);
