//! Weights of blocks and of int8 in the backend's operations.

use kin_infer::cpu::{CpuCompute, available, quant_available};
use kin_infer::gpu::{Activation, GpuCompute, Weight};
use kin_infer::weights::{Dtype, Tensor};
use kin_infer::{InferError, Precision};
use safetensors::tensor::Dtype as FileDtype;

use super::composed::Composed;
use super::definition::{Random, block_tensor, same, tensor};
use super::{stale, values};

/// Gate and up projection of every kind, alike and mixed: quantising their input once does not show.
#[test]
fn gated_ffn_of_quantised_weights_is_its_composition() {
    let mut random = Random::new(9);
    let (rows, n, k) = (7, 50, 96);
    let kinds = [None, Some(Dtype::F32), Some(Dtype::Q8_0), Some(Dtype::Q4_0)];
    let x = random.vector(rows * k, 1.0);
    let mut prepared = |c: &CpuCompute, kind: Option<Dtype>| -> Weight {
        let w = random.vector(n * k, 0.3);
        match kind {
            None => {
                let (t, _) = tensor(&w, &[n, k], FileDtype::F32);
                c.prepare_weight_as(&[t], Precision::Int8).unwrap()
            }
            Some(Dtype::F32) => c.prepare_weight(&[tensor(&w, &[n, k], FileDtype::F32).0]).unwrap(),
            Some(dtype) => c.prepare_weight(&[block_tensor(&w, [n, k], dtype).0]).unwrap(),
        }
    };
    for quant in quant_available() {
        let c = &CpuCompute::with_quant_kernels(available()[0], quant);
        let x = c.upload(&x).unwrap();
        for (gate_kind, up_kind) in kinds.into_iter().flat_map(|g| kinds.map(|u| (g, u))) {
            let (gate, up) = (prepared(c, gate_kind), prepared(c, up_kind));
            let run = |c: &dyn GpuCompute| {
                let mut out = stale(c, rows * n);
                c.gated_ffn(&x, rows, (&gate, None), (&up, None), Activation::Silu, &mut out).unwrap();
                values(c, &out)
            };
            let case = || format!("{}: gate {gate_kind:?}, up {up_kind:?}", quant.name());
            same(case, &run(c), &run(&Composed(c)));
        }
    }
}

/// Stacked matrices are the layers side by side, whatever their types: each is widened first.
#[test]
fn int8_takes_every_type_and_stacks() {
    let mut random = Random::new(10);
    let (rows, k) = (5, 64);
    let c = &CpuCompute::new().unwrap();
    let x = c.upload(&random.vector(rows * k, 1.0)).unwrap();
    let dtypes = [FileDtype::F32, FileDtype::F16, FileDtype::BF16];
    let mut parts: Vec<(Tensor, Tensor)> = dtypes.map(|d| widened(random.vector(20 * k, 0.3), (20, k), d)).into();
    for dtype in [Dtype::Q8_0, Dtype::Q4_0] {
        let (blocks, _) = block_tensor(&random.vector(20 * k, 0.3), [20, k], dtype);
        let (wide, _) = tensor(&blocks.to_f32().unwrap(), &[20, k], FileDtype::F32);
        parts.push((blocks, wide));
    }
    let product = |parts: &[Tensor]| {
        let weight = c.prepare_weight_as(parts, Precision::Int8).unwrap();
        let mut out = stale(c, rows * weight.n());
        c.matmul(&x, rows, &weight, kin_infer::gpu::Epilogue::NONE, &mut out).unwrap();
        values(c, &out)
    };
    let (stored, wide): (Vec<Tensor>, Vec<Tensor>) = parts.into_iter().unzip();
    let stacked = product(&stored);
    for (i, (stored, wide)) in stored.into_iter().zip(wide).enumerate() {
        let alone = product(&[stored]);
        same(|| format!("part {i}"), &alone, &product(&[wide]));
        for row in 0..rows {
            same(|| format!("part {i} stacked"), &stacked[row * 100 + i * 20..][..20], &alone[row * 20..][..20]);
        }
    }
}

fn widened(values: Vec<f32>, (n, k): (usize, usize), dtype: FileDtype) -> (Tensor, Tensor) {
    let (stored, held) = tensor(&values, &[n, k], dtype);
    (stored, tensor(&held, &[n, k], FileDtype::F32).0)
}

#[test]
fn int8_refuses_what_it_cannot_multiply() {
    let c = &CpuCompute::new().unwrap();
    let (long, _) = tensor(&vec![1.0; 66_312], &[1, 66_312], FileDtype::F32);
    match c.prepare_weight_as(&[long], Precision::Int8) {
        Err(InferError::TensorError { tensor, expected, found, .. }) => {
            assert!(tensor == "t" && expected.contains("66311") && found.contains("66312"), "{expected}, {found}");
        }
        other => panic!("{:?}", other.err()),
    }
    let (bad, _) = tensor(&[1.0, f32::NAN, 2.0, 3.0], &[2, 2], FileDtype::F32);
    let error = c.prepare_weight_as(std::slice::from_ref(&bad), Precision::Int8).err().unwrap().to_string();
    assert_eq!(error, c.prepare_weight(&[bad]).err().unwrap().to_string());
    // A backend that has the primitives only.
    let (good, _) = tensor(&[1.0; 4], &[2, 2], FileDtype::F32);
    match Composed(c).prepare_weight_as(&[good], Precision::Int8) {
        Err(InferError::BackendError { detail, .. }) => assert!(detail.contains("CPU"), "{detail}"),
        other => panic!("{:?}", other.err()),
    }
}
