//! The backend's operations: the fused ones against their composition and against definitions of their own, and sizes
//! that contradict each other as errors.

#[path = "kernels/backend/attention.rs"]
mod attention;
#[path = "kernels/backend/attention_errors.rs"]
mod attention_errors;
#[path = "kernels/backend/batch.rs"]
mod batch;
#[path = "kernels/backend/composed.rs"]
mod composed;
#[path = "kernels/backend/contract.rs"]
mod contract;
#[allow(dead_code)]
#[path = "kernels/definition.rs"]
mod definition;
mod devices;
mod emulated;
#[path = "kernels/backend/errors.rs"]
mod errors;
#[path = "kernels/backend/extremes.rs"]
mod extremes;
#[path = "kernels/backend/isolation.rs"]
mod isolation;
#[path = "kernels/backend/quantised.rs"]
mod quantised;
#[path = "kernels/backend/relative.rs"]
mod relative;
#[path = "kernels/backend/rows.rs"]
mod rows;
#[path = "kernels/backend/stored.rs"]
mod stored;
#[path = "kernels/backend/windows.rs"]
mod windows;

use composed::Composed;
use definition::{ACTIVATIONS, Random, each_backend, on_every_backend, same, tensor, with_threads};
use kin_infer::gpu::{
    Activation, AttentionShape, Buffer, Columns, GpuCompute, KeyWindow, Norm, NormKind, PoolingMode, Rope, RopeLayout,
    ScoreBias, Segments,
};
use safetensors::tensor::Dtype;

fn values(compute: &dyn GpuCompute, buffer: &Buffer) -> Vec<f32> {
    let mut out = vec![0.0; buffer.len()];
    compute.read(buffer, &mut out).unwrap();
    out
}

/// A buffer of stale values: an operation writes all of its output.
fn stale(compute: &dyn GpuCompute, len: usize) -> Buffer {
    compute.upload(&vec![f32::NAN; len]).unwrap()
}

#[track_caller]
fn close(case: impl Fn() -> String, found: &[f32], exact: &[f64], tolerance: f64) {
    assert_eq!(found.len(), exact.len(), "{}: length", case());
    for (i, (f, e)) in found.iter().zip(exact).enumerate() {
        let error = (f64::from(*f) - e).abs();
        assert!(error <= tolerance * e.abs().max(1.0), "{}: [{i}] is {f}, exactly {e}", case());
    }
}

#[test]
fn linear_add_norm_is_its_composition() {
    let mut random = Random::new(1);
    for (rows, n, k) in [(1, 1, 1), (3, 48, 100), (9, 77, 513), (200, 96, 384), (0, 16, 8)] {
        let (weight, w) = tensor(&random.vector(n * k, 0.3), &[n, k], Dtype::F32);
        let [x, bias, residual, gamma, beta] = [rows * k, n, rows * n, n, n].map(|len| random.vector(len, 1.0));
        let product = definition::product(&x, &w, (rows, n, k));
        let defined = |with_bias: bool, kind: NormKind, with_beta: bool| -> Vec<f32> {
            let rows = product.chunks(n).zip(residual.chunks(n)).map(|(row, residual)| {
                let bias = with_bias.then_some(&bias[..]);
                let sum = definition::finish(row, bias, Activation::Identity, None, Some(residual));
                match kind {
                    NormKind::LayerNorm => definition::layer_norm(&sum, &gamma, with_beta.then_some(&beta[..]), 1e-12),
                    NormKind::RmsNorm => definition::rms_norm(&sum, &gamma, 1e-12),
                }
            });
            rows.flatten().collect()
        };
        each_backend("linear_add_norm", |backend, c| {
            let weight = c.prepare_weight(std::slice::from_ref(&weight)).unwrap();
            let [x, bias, residual, gamma, beta] = [&x, &bias, &residual, &gamma, &beta].map(|v| c.upload(v).unwrap());
            for (bias, beta) in [(None, None), (Some(&bias), None), (None, Some(&beta)), (Some(&bias), Some(&beta))] {
                let norm = Norm { kind: NormKind::LayerNorm, gamma: &gamma, beta, eps: 1e-12 };
                for norm in [norm, Norm { kind: NormKind::RmsNorm, beta: None, ..norm }] {
                    let run = |c: &dyn GpuCompute| {
                        let mut out = stale(c, rows * n);
                        c.linear_add_norm(&x, rows, &weight, bias, &residual, norm, &mut out).unwrap();
                        values(c, &out)
                    };
                    let case = || format!("{backend} {rows} {n} {k} {}", norm.kind);
                    same(case, &run(c), &run(&Composed(c)));
                    same(case, &run(c), &defined(bias.is_some(), norm.kind, norm.beta.is_some()));
                }
            }
        });
    }
}

#[test]
fn gated_ffn_is_its_composition() {
    let mut random = Random::new(2);
    for (rows, n, k) in [(1, 1, 1), (5, 33, 70), (9, 77, 513), (130, 96, 64)] {
        let [(gate, gw), (up, uw)] = [1, 2].map(|_| tensor(&random.vector(n * k, 0.3), &[n, k], Dtype::BF16));
        let [x, g, u] = [rows * k, n, n].map(|len| random.vector(len, 1.0));
        let [gated, upped] = [&gw, &uw].map(|w| definition::product(&x, w, (rows, n, k)));
        let defined = |activation: Activation, biased: bool| -> Vec<f32> {
            let rows = gated.chunks(n).zip(upped.chunks(n)).map(|(gate, up)| {
                let bias = |b| if biased { Some(b) } else { None };
                let up = definition::finish(up, bias(&u[..]), Activation::Identity, None, None);
                definition::finish(gate, bias(&g[..]), activation, Some(&up), None)
            });
            rows.flatten().collect()
        };
        each_backend("gated_ffn", |backend, c| {
            let [gate, up] = [&gate, &up].map(|t| c.prepare_weight(std::slice::from_ref(t)).unwrap());
            let [x, g, u] = [&x, &g, &u].map(|v| c.upload(v).unwrap());
            for (activation, biased) in ACTIVATIONS.into_iter().flat_map(|a| [(a, false), (a, true)]) {
                let run = |c: &dyn GpuCompute| {
                    let mut out = stale(c, rows * n);
                    let bias = |b| if biased { Some(b) } else { None };
                    c.gated_ffn(&x, rows, (&gate, bias(&g)), (&up, bias(&u)), activation, &mut out).unwrap();
                    values(c, &out)
                };
                let case = || format!("{backend} {rows} {n} {k} {activation:?} {biased}");
                same(case, &run(c), &run(&Composed(c)));
                same(case, &run(c), &defined(activation, biased));
            }
        });
    }
}

/// Elementwise and row operations split over threads: each row alone gives the same.
#[test]
fn row_operations_do_not_see_threads() {
    let (rows, cols) = (700, 77);
    let mut random = Random::new(3);
    let [x, y, gamma, beta] = [rows * cols, rows * cols, cols, cols].map(|len| random.vector(len, 2.0));
    each_backend("row operations with 1, 2, 3 and 7 threads", |backend, c| {
        let run = |threads: usize| {
            with_threads(threads, || {
                let [mut x, y, gamma, beta] = [&x, &y, &gamma, &beta].map(|v| c.upload(v).unwrap());
                c.add(&mut x, &y).unwrap();
                let norm = Norm { kind: NormKind::LayerNorm, gamma: &gamma, beta: Some(&beta), eps: 1e-5 };
                c.norm_rows(&mut x, norm).unwrap();
                c.activate(&mut x, Activation::GeluErf).unwrap();
                c.mul(&mut x, &y).unwrap();
                c.norm_rows(&mut x, Norm { kind: NormKind::RmsNorm, beta: None, ..norm }).unwrap();
                c.l2_normalize(&mut x, cols).unwrap();
                values(c, &x)
            })
        };
        let mut expected: Vec<f32> = x.iter().zip(&y).map(|(x, y)| x + y).collect();
        for (row, y) in expected.chunks_mut(cols).zip(y.chunks(cols)) {
            let normed = definition::layer_norm(row, &gamma, Some(&beta), 1e-5);
            let active = normed.iter().map(|x| definition::activation(Activation::GeluErf, *x));
            let product: Vec<f32> = active.zip(y).map(|(x, y)| x * y).collect();
            row.copy_from_slice(&definition::l2_normalize(&definition::rms_norm(&product, &gamma, 1e-5)));
        }
        for threads in [1, 2, 3, 7] {
            same(|| format!("{backend} {threads} threads"), &run(threads), &expected);
        }
    });
}

#[test]
fn rope_rotates_pairs() {
    let (rows, heads, head_dim, first, stride, positions) = (70usize, 3, 10, 4, 40, 512usize);
    let mut random = Random::new(4);
    for layout in [RopeLayout::Halves, RopeLayout::Interleaved] {
        for rotary in [0, 2, 6, 10] {
            let half = rotary / 2;
            let angle = |p: usize, i: usize| p as f64 * libm::pow(10_000.0, -2.0 * i as f64 / rotary as f64);
            let of = |f: fn(f64) -> f64| -> Vec<f32> {
                (0..positions).flat_map(|p| (0..half).map(move |i| f(angle(p, i)) as f32)).collect()
            };
            let (cos, sin) = (of(libm::cos), of(libm::sin));
            let x = random.vector(rows * stride, 1.0);
            let at: Vec<u32> = (0..rows).map(|_| (random.bits() % positions as u64) as u32).collect();
            let (mut exact, mut expected) = (x.iter().map(|v| f64::from(*v)).collect::<Vec<_>>(), x.clone());
            for (row, p) in at.iter().map(|p| *p as usize).enumerate() {
                for (head, i) in (0..heads).flat_map(|h| (0..half).map(move |i| (h, i))) {
                    let (a, b) = match layout {
                        RopeLayout::Halves => (i, i + half),
                        RopeLayout::Interleaved => (2 * i, 2 * i + 1),
                    };
                    let base = row * stride + first + head * head_dim;
                    let (a, b) = (base + a, base + b);
                    let (c, s) = (libm::cos(angle(p, i)), libm::sin(angle(p, i)));
                    (exact[a], exact[b]) = (exact[a] * c - exact[b] * s, exact[b] * c + exact[a] * s);
                    let (c, s) = (cos[p * half + i], sin[p * half + i]);
                    (expected[a], expected[b]) = (expected[a] * c - expected[b] * s, expected[b] * c + expected[a] * s);
                }
            }
            each_backend("rope", |backend, c| {
                let [cos, sin, mut x] = [&cos, &sin, &x].map(|v| c.upload(v).unwrap());
                let positions = &c.upload_index(&at).unwrap();
                let rope = Rope {
                    cos: &cos,
                    sin: &sin,
                    positions,
                    first,
                    stride,
                    heads,
                    head_dim,
                    rotary_dim: rotary,
                    layout,
                };
                c.rope(&mut x, &rope).unwrap();
                let case = || format!("{backend} {layout:?} {rotary}");
                close(case, &values(c, &x), &exact, 1e-6);
                same(case, &values(c, &x), &expected);
            });
        }
    }
}

const MODES: [(&str, PoolingMode); 6] = [
    ("cls", PoolingMode::Cls),
    ("max", PoolingMode::Max),
    ("mean", PoolingMode::Mean),
    ("mean_sqrt_len_tokens", PoolingMode::MeanSqrtLen),
    ("weightedmean", PoolingMode::WeightedMean),
    ("lasttoken", PoolingMode::LastToken),
];

#[test]
fn pooling_as_sentence_transformers_does() {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/pooling.json")).unwrap();
    let fixture: serde_json::Value = serde_json::from_str(&text).unwrap();
    let numbers = |v: &serde_json::Value| v.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect::<Vec<_>>();
    let dim = fixture["dim"].as_u64().unwrap() as usize;
    each_backend("pooling", |backend, c| {
        for case in fixture["cases"].as_array().unwrap() {
            let prompt = case["prompt_length"].as_u64().unwrap() as usize;
            let skip = if case["include_prompt"].as_bool().unwrap() { 0 } else { prompt };
            let tokens: Vec<Vec<f64>> = case["tokens"].as_array().unwrap().iter().map(numbers).collect();
            // The second of two sequences, in columns 3.. of a wider output.
            let ranges = Segments::from_lengths([4, tokens.len()]);
            let lead = [1e9f32; 4 * 5];
            let x: Vec<f32> = lead.into_iter().chain(tokens.iter().flatten().map(|x| *x as f32)).collect();
            let x = c.upload(&x).unwrap();
            for (name, mode) in MODES {
                let mut out = c.upload(&[7.0; 2 * 9]).unwrap();
                c.pool(&x, dim, &ranges, skip, mode, (&mut out, 3, 9)).unwrap();
                let out = values(c, &out);
                close(|| format!("{backend} {name} skip {skip}"), &out[12..17], &numbers(&case["outputs"][name]), 1e-6);
                assert_eq!([&out[..3], &out[8..12], &out[17..]].concat(), [7.0; 8], "{name}: other columns");
            }
        }
    });
}

#[test]
fn pooling_follows_the_contract() {
    let (cols, skip) = (37, 2);
    let lengths = [3usize, 40, 9, 700];
    let ranges = Segments::from_lengths(lengths);
    let mut random = Random::new(5);
    let x = random.vector(ranges.total() * cols, 2.0);
    for (name, mode) in MODES {
        let mut expected = Vec::new();
        for range in ranges.iter() {
            let at = |token: usize, j: usize| x[(range.start + token) * cols + j];
            let tokens = skip..range.len();
            let fold =
                |j: usize, f: &dyn Fn(f32, usize, f32) -> f32| tokens.clone().fold(0f32, |acc, t| f(acc, t, at(t, j)));
            let count = tokens.len() as f32;
            expected.extend((0..cols).map(|j| match mode {
                PoolingMode::Cls => at(skip, j),
                PoolingMode::LastToken => at(range.len() - 1, j),
                PoolingMode::Max => tokens.clone().map(|t| at(t, j)).fold(f32::NEG_INFINITY, f32::max),
                PoolingMode::Mean => fold(j, &|acc, _, x| acc + x) / count,
                PoolingMode::MeanSqrtLen => fold(j, &|acc, _, x| acc + x) / count.sqrt(),
                PoolingMode::WeightedMean => {
                    let weights = tokens.clone().fold(0f32, |acc, t| acc + (t + 1) as f32);
                    fold(j, &|acc, t, x| acc + x * (t + 1) as f32) / weights
                }
            }));
        }
        each_backend("pooling", |backend, c| {
            for threads in [1, 3] {
                let found = with_threads(threads, || {
                    let mut out = stale(c, lengths.len() * cols);
                    c.pool(&c.upload(&x).unwrap(), cols, &ranges, skip, mode, (&mut out, 0, cols)).unwrap();
                    values(c, &out)
                });
                same(|| format!("{backend} {name}, {threads} threads"), &found, &expected);
            }
        });
    }
}

fn max_pooling_keeps_nan(c: &dyn GpuCompute) {
    for at in 0..3 {
        let mut x = [1.0, 2.0, 3.0];
        x[at] = f32::NAN;
        let mut out = stale(c, 1);
        let x = c.upload(&x).unwrap();
        c.pool(&x, 1, &Segments::from_lengths([3]), 0, PoolingMode::Max, (&mut out, 0, 1)).unwrap();
        assert!(values(c, &out)[0].is_nan());
    }
}

#[test]
fn gather_widens_and_accumulates() {
    let (rows, cols) = (50, 33);
    let mut random = Random::new(6);
    let ids: Vec<u32> = (0..900).map(|_| (random.bits() % rows as u64) as u32).collect();
    for dtype in [Dtype::F32, Dtype::F16, Dtype::BF16] {
        let (words, w) = tensor(&random.vector(rows * cols, 1.0), &[rows, cols], dtype);
        let (types, t) = tensor(&random.vector(rows * cols, 1.0), &[rows, cols], dtype);
        let id = |i: usize| ids[i / cols] as usize * cols + i % cols;
        let first: Vec<f32> = (0..ids.len() * cols).map(|i| w[id(i)]).collect();
        let sum: Vec<f32> = (0..ids.len() * cols).map(|i| w[id(i)] + t[id(i)]).collect();
        each_backend("gather", |backend, c| {
            for threads in [1, 3] {
                with_threads(threads, || {
                    let [words, types] = [&words, &types].map(|t| c.prepare_table(t).unwrap());
                    let ids = c.upload_index(&ids).unwrap();
                    let mut out = stale(c, ids.len() * cols);
                    c.gather(&words, &ids, false, &mut out).unwrap();
                    same(|| format!("{backend} {dtype:?}"), &values(c, &out), &first);
                    c.gather(&types, &ids, true, &mut out).unwrap();
                    same(|| format!("{backend} {dtype:?}, added"), &values(c, &out), &sum);
                });
            }
        });
    }
}

/// A buffer that is not whole rows, a head or a row without features: refused, nothing computed.
fn sizes_that_do_not_make_rows_are_refused(compute: &dyn GpuCompute) {
    let one = compute.upload(&[1.0; 4]).unwrap();
    let none = compute.upload(&[]).unwrap();
    let mut seven = compute.upload(&[1.0; 7]).unwrap();
    for kind in [NormKind::LayerNorm, NormKind::RmsNorm] {
        for gamma in [&one, &none] {
            assert!(compute.norm_rows(&mut seven, Norm { kind, gamma, beta: None, eps: 0.0 }).is_err());
        }
    }
    assert!(compute.l2_normalize(&mut seven, 4).is_err());
    assert!(compute.l2_normalize(&mut seven, 0).is_err());
    let segments = Segments::from_lengths([1]);
    let mut out = compute.alloc(4).unwrap();
    assert!(compute.pool(&seven, 0, &segments, 0, PoolingMode::Mean, (&mut out, 0, 1)).is_err());
    let shape = AttentionShape {
        segments: &segments,
        heads: 1,
        kv_heads: 1,
        head_dim: 0,
        scale: 1.0,
        positions: &compute.upload_index(&[0]).unwrap(),
        bias: ScoreBias::None,
        window: KeyWindow::ALL,
        softcap: None,
    };
    let view = Columns { buffer: &one, first: 0, stride: 4 };
    assert!(compute.attention(view, view, view, &shape, &mut out).is_err());
}

on_every_backend!(max_pooling_keeps_nan, sizes_that_do_not_make_rows_are_refused);
