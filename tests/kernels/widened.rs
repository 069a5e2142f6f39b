//! The linear layer over weights in blocks that are multiplied in f32: the bits of the values that the blocks stand for.

use half::f16;
use kin_infer::gpu::{Activation, Epilogue, GpuCompute};
use kin_infer::weights::{Dtype, Tensor, blocks};

use super::definition::{Random, blocks_as_tensor, each_backend, finish, product, same, with_threads};

const KINDS: [Dtype; 6] = [Dtype::Q4_1, Dtype::Q5_0, Dtype::Q5_1, Dtype::Q4K, Dtype::Q5K, Dtype::Q6K];

/// Random blocks with finite scales of either sign, and their values.
fn random_blocks(random: &mut Random, [n, k]: [usize; 2], kind: Dtype) -> (Tensor, Vec<f32>) {
    let mut bytes: Vec<u8> = (0..n * k / kind.block_len() * kind.size()).map(|_| random.bits() as u8).collect();
    for block in bytes.chunks_exact_mut(kind.size()) {
        let scales: &[usize] = match kind {
            Dtype::Q8_0 | Dtype::Q4_0 | Dtype::Q5_0 => &[0],
            Dtype::Q6K => &[208],
            _ => &[0, 2],
        };
        for at in scales {
            let scale = (random.unit() - 0.5) * if kind.block_len() == 256 { 1e-3 } else { 0.05 };
            block[*at..at + 2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
        }
    }
    let mut values = vec![0.0; n * k];
    blocks::dequantise(kind, &bytes, &mut values).unwrap();
    (blocks_as_tensor(&bytes, [n, k], kind), values)
}

/// Asserts that stacked tensors multiply as the values that they hold.
fn check(random: &mut Random, parts: &[(Tensor, Vec<f32>)], (rows, k): (usize, usize), case: &str) {
    let tensors: Vec<Tensor> = parts.iter().map(|(tensor, _)| tensor.clone()).collect();
    let w: Vec<f32> = parts.iter().flat_map(|(_, values)| values).copied().collect();
    let n = tensors.iter().map(|t| t.shape()[0]).sum();
    let mut x = random.vector(rows * k, 2.0);
    x.iter_mut().take(3).for_each(|v| *v = -0.0);
    let (bias, residual) = (random.vector(n, 1.0), random.vector(rows * n, 1.0));
    let plain = product(&x, &w, (rows, n, k));
    let row =
        |r: usize| finish(&plain[r * n..][..n], Some(&bias), Activation::Silu, None, Some(&residual[r * n..][..n]));
    let whole: Vec<f32> = (0..rows).flat_map(row).collect();
    each_backend("blocks in f32", |backend, c| {
        let weight = c.prepare_weight(&tensors).unwrap();
        let [x, bias, residual] = [&x, &bias, &residual].map(|v| c.upload(v).unwrap());
        let epilogue =
            Epilogue { bias: Some(&bias), activation: Activation::Silu, residual: Some(&residual), ..Epilogue::NONE };
        for (epilogue, expected) in [(Epilogue::NONE, &plain), (epilogue, &whole)] {
            for threads in [1, 2] {
                let mut out = c.upload(&vec![f32::NAN; rows * n]).unwrap();
                with_threads(threads, || c.matmul(&x, rows, &weight, epilogue, &mut out)).unwrap();
                let mut found = vec![0.0; rows * n];
                c.read(&out, &mut found).unwrap();
                same(|| format!("{backend}: {case}, {rows} rows, {n} x {k}, {threads} threads"), &found, expected);
            }
        }
    });
}

/// Few rows and many, panels whole and cut, abreast and alone, one chain and several; large enough for two threads too.
#[test]
fn shapes() {
    let mut random = Random::new(31);
    for kind in KINDS {
        let depths = if kind.block_len() == 256 { [256, 768, 1024] } else { [32, 544, 1120] };
        for (i, rows) in [1, 1, 1, 2, 3, 4, 5, 13, 65, 1, 1, 1].into_iter().enumerate() {
            let (n, k) = ([1, 80, 150, 33, 17, 48, 70, 16, 40, 5, 16, 500][i], depths[i % 3]);
            let part = random_blocks(&mut random, [n, k], kind);
            check(&mut random, &[part], (rows, k), kind.name());
        }
    }
}

/// Stacks of several types keep them where each panel holds columns of one, and are widened where not: to the same bits.
#[test]
fn stacks() {
    let mut random = Random::new(32);
    let kinds = [Dtype::Q4K, Dtype::Q6K, Dtype::Q8_0, Dtype::Q5K, Dtype::Q4_0, Dtype::Q5_0];
    for heights in [[32, 16, 48, 16, 64, 20], [20, 16, 7, 33, 16, 16]] {
        for rows in [1, 3, 9] {
            let parts: Vec<_> =
                kinds.iter().zip(heights).map(|(kind, n)| random_blocks(&mut random, [n, 512], *kind)).collect();
            check(&mut random, &parts, (rows, 512), "a stack");
        }
    }
}

/// Blocks take the memory that they take in the file, up to rows that fill the last panel.
#[test]
fn they_stay_small() {
    let mut random = Random::new(33);
    let c = kin_infer::cpu::CpuCompute::new().unwrap();
    let mut taken = |kinds: &[Dtype], heights: [usize; 2]| {
        let parts = kinds.iter().zip(heights).map(|(kind, n)| random_blocks(&mut random, [n, 1024], *kind).0);
        let parts: Vec<Tensor> = parts.collect();
        let stored: usize = parts.iter().map(|part| part.bytes().len()).sum();
        (stored, c.prepare_weight(&parts).unwrap().bytes())
    };
    for kind in KINDS {
        for (kinds, heights) in [(&[kind, kind][..], [20, 44]), (&[kind, Dtype::Q8_0], [48, 16])] {
            let (stored, taken) = taken(kinds, heights);
            assert!(
                (stored..stored + stored / 32).contains(&taken),
                "{kinds:?}: {taken} bytes, of {stored} in the file"
            );
        }
    }
    let (_, widened) = taken(&[Dtype::Q4K, Dtype::Q6K], [20, 44]);
    assert_eq!(widened, 64 * 1024 * 4, "16 rows of two types");
}

/// Zeros have signs. A first product that underflows to -0 stays -0 beside weights of -0, and not beside +0.
#[test]
fn zeros_keep_their_signs() {
    let (below, none) = (f16::from_f32(-0.1).to_le_bytes(), f16::from_f32(0.0).to_le_bytes());
    for kind in KINDS {
        // Value 0 is the scale, -0.1; all others are the scale times 0, and plus -0 or less +0 where there are minima.
        let mut block = vec![0u8; kind.size()];
        match kind {
            Dtype::Q6K => {
                block[128..192].fill(0xaa); // 32, which is 0
                block[0] = 1;
                block[192..208].fill(1);
                block[208..210].copy_from_slice(&below);
            }
            Dtype::Q5_0 => {
                block[..2].copy_from_slice(&below);
                block[2..6].fill(0xff); // 16, which is 0
                block[6] = 1;
            }
            Dtype::Q4_1 | Dtype::Q5_1 => {
                block[..2].copy_from_slice(&below);
                block[2..4].copy_from_slice(&f16::NEG_ZERO.to_le_bytes());
                block[if kind == Dtype::Q4_1 { 4 } else { 8 }] = 1;
            }
            _ => {
                block[..2].copy_from_slice(&below);
                block[2..4].copy_from_slice(&none);
                block[4..8].fill(1); // multiples of groups 0 to 3: scales 1, minima 0
                block[12..16].fill(1);
                block[if kind == Dtype::Q4K { 16 } else { 48 }] = 1;
            }
        }
        let k = kind.block_len();
        let mut values = vec![0.0; k];
        blocks::dequantise(kind, &block, &mut values).unwrap();
        assert!(
            values[0] < -0.05 && values[1..].iter().all(|v| *v == 0.0 && v.is_sign_negative()),
            "{kind}: {values:?}"
        );
        for rows in [1, 5] {
            let mut x = vec![1.0; rows * k];
            x.iter_mut().step_by(k).for_each(|v| *v = 1e-45);
            let expected = vec![-0.0; rows];
            same(|| format!("{kind}"), &product(&x, &values, (rows, 1, k)), &expected);
            each_backend("signs of zeros", |backend, c| {
                let weight = c.prepare_weight(&[blocks_as_tensor(&block, [1, k], kind)]).unwrap();
                let mut out = c.alloc(rows).unwrap();
                c.matmul(&c.upload(&x).unwrap(), rows, &weight, Epilogue::NONE, &mut out).unwrap();
                let mut found = vec![0.0; rows];
                c.read(&out, &mut found).unwrap();
                same(|| format!("{backend}: {kind}, {rows} rows"), &found, &expected);
            });
        }
    }
}
