//! Self-attention: fused, composed, from the contract, and in float64.

use kin_infer::cpu::CpuCompute;
use kin_infer::gpu::{Alibi, AttentionShape, Columns, GpuCompute, Segments};

use super::composed::Composed;
use super::definition::{Random, chain, each_isa, same, softmax, with_threads};
use super::{close, stale, values};

/// A packed batch of queries, keys and values: [rows, 3 * width], of which a key head may leave columns unused.
struct Batch {
    lengths: Vec<usize>,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    scale: f32,
    slopes: Option<Vec<f32>>,
    positions: Vec<u32>,
    packed: Vec<f32>,
}

impl Batch {
    fn new(lengths: &[usize], (heads, kv_heads, head_dim): (usize, usize, usize), alibi: bool, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let rows = lengths.iter().sum::<usize>();
        Self {
            lengths: lengths.to_vec(),
            heads,
            kv_heads,
            head_dim,
            scale: 1.0 / (head_dim as f32).sqrt(),
            slopes: alibi.then(|| (0..heads).map(|h| 2f32.powf(-8.0 * (h + 1) as f32 / heads as f32)).collect()),
            // Positions need not be row numbers: every seventh is left out.
            positions: lengths.iter().flat_map(|len| (0..*len as u32).map(|i| i + i / 6)).collect(),
            packed: random.vector(rows * 3 * heads * head_dim, 2.0),
        }
    }

    fn width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Sequence i alone.
    fn alone(&self, i: usize) -> Self {
        let first = self.lengths[..i].iter().sum::<usize>();
        let rows = first..first + self.lengths[i];
        let stride = 3 * self.width();
        Self {
            lengths: vec![self.lengths[i]],
            slopes: self.slopes.clone(),
            positions: self.positions[rows.clone()].to_vec(),
            packed: self.packed[rows.start * stride..rows.end * stride].to_vec(),
            ..*self
        }
    }

    fn run(&self, compute: &dyn GpuCompute) -> Vec<f32> {
        let segments = Segments::from_lengths(self.lengths.iter().copied());
        let packed = compute.upload(&self.packed).unwrap();
        let slopes = self.slopes.as_ref().map(|s| compute.upload(s).unwrap());
        let positions = compute.upload_index(&self.positions).unwrap();
        let shape = AttentionShape {
            segments: &segments,
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            scale: self.scale,
            alibi: slopes.as_ref().map(|slopes| Alibi { slopes, positions: &positions }),
        };
        let view = |i: usize| Columns { buffer: &packed, first: i * self.width(), stride: 3 * self.width() };
        let mut out = stale(compute, segments.total() * self.width());
        compute.attention(view(0), view(1), view(2), &shape, &mut out).unwrap();
        values(compute, &out)
    }

    /// `attend(query row, keys, head, column of its key head, row of the output)` for each query and head.
    fn each(&self, mut attend: impl FnMut(usize, std::ops::Range<usize>, usize, usize, usize)) {
        let mut first = 0;
        for len in &self.lengths {
            for query in first..first + len {
                for head in 0..self.heads {
                    let column = head / (self.heads / self.kv_heads) * self.head_dim;
                    attend(query, first..first + len, head, column, query * self.width() + head * self.head_dim);
                }
            }
            first += len;
        }
    }

    fn part(&self, part: usize, row: usize, column: usize) -> &[f32] {
        &self.packed[row * 3 * self.width() + part * self.width() + column..][..self.head_dim]
    }

    fn defined(&self) -> Vec<f32> {
        let mut out = vec![0.0; self.positions.len() * self.width()];
        self.each(|query, keys, head, column, at| {
            let q = self.part(0, query, head * self.head_dim);
            let score = |key: usize| chain(self.head_dim, |d| q[d], |d| self.part(1, key, column)[d]);
            let scores: Vec<f32> = keys.clone().map(score).collect();
            let distance = |key: usize| self.positions[key].abs_diff(self.positions[query]) as f32;
            let bias: Option<Vec<f32>> =
                self.slopes.as_ref().map(|s| keys.clone().map(|key| -(s[head] * distance(key))).collect());
            let p = softmax(&scores, self.scale, bias.as_deref());
            for d in 0..self.head_dim {
                out[at + d] = chain(keys.len(), |j| p[j], |j| self.part(2, keys.start + j, column)[d]);
            }
        });
        out
    }

    fn exact(&self) -> Vec<f64> {
        let mut out = vec![0.0; self.positions.len() * self.width()];
        self.each(|query, keys, head, column, at| {
            let q = self.part(0, query, head * self.head_dim);
            let score = |key: usize| {
                let dot: f64 =
                    q.iter().zip(self.part(1, key, column)).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
                let distance = f64::from(self.positions[key]) - f64::from(self.positions[query]);
                let slope = self.slopes.as_ref().map_or(0.0, |s| f64::from(s[head]));
                dot / libm::sqrt(self.head_dim as f64) - slope * distance.abs()
            };
            let scores: Vec<f64> = keys.clone().map(score).collect();
            let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let e: Vec<f64> = scores.iter().map(|s| libm::exp(s - top)).collect();
            let sum: f64 = e.iter().sum();
            for (key, e) in keys.zip(&e) {
                for (d, v) in self.part(2, key, column).iter().enumerate() {
                    out[at + d] += e / sum * f64::from(*v);
                }
            }
        });
        out
    }

    fn check(&self, name: &str) {
        let (defined, exact) = (self.defined(), self.exact());
        each_isa(&format!("attention {name}"), |kernels| {
            let case = |what: &str| format!("{} attention {name}, {what}", kernels.name());
            let compute = CpuCompute::with_kernels(kernels);
            let fused = self.run(&compute);
            close(|| case("float64"), &fused, &exact, 1e-5);
            same(|| case("the contract"), &fused, &defined);
            same(|| case("composed"), &self.run(&Composed(&compute)), &defined);
            for threads in [1, 2] {
                same(|| case("threads"), &with_threads(threads, || self.run(&compute)), &defined);
            }
            let alone: Vec<f32> = (0..self.lengths.len()).flat_map(|i| self.alone(i).run(&compute)).collect();
            same(|| case("alone"), &alone, &defined);
        });
    }
}

#[test]
fn every_shape_of_heads() {
    for kv_heads in [4, 2, 1] {
        for head_dim in [1, 8, 32, 33] {
            for alibi in [false, true] {
                let batch = Batch::new(&[2, 0, 17, 1, 97, 15, 16, 0], (4, kv_heads, head_dim), alibi, 1);
                batch.check(&format!("4/{kv_heads} heads of {head_dim}, alibi {alibi}"));
            }
        }
    }
}

#[test]
fn long_sequences() {
    for (alibi, head_dim) in [(false, 32), (true, 33)] {
        Batch::new(&[130, 1, 600], (2, 1, head_dim), alibi, 2).check(&format!("long, alibi {alibi}"));
    }
}

#[test]
fn no_rows_and_no_sequences() {
    for lengths in [&[][..], &[0], &[0, 0, 0]] {
        Batch::new(lengths, (4, 2, 8), true, 3).check("of nothing");
    }
}

/// A sequence that overflows becomes NaN and leaves the others alone.
#[test]
fn a_non_finite_sequence_stays_alone() {
    let mut batch = Batch::new(&[5, 7, 40], (4, 4, 8), false, 4);
    let defined = batch.defined();
    let row = 5 * 3 * batch.width();
    batch.packed[row..row + 32].fill(f32::INFINITY);
    each_isa("attention with a non-finite sequence", |kernels| {
        let found = batch.run(&CpuCompute::with_kernels(kernels));
        let width = batch.width();
        same(|| "before".into(), &found[..5 * width], &defined[..5 * width]);
        assert!(found[5 * width..6 * width].iter().all(|v| v.is_nan()));
        same(|| "after".into(), &found[6 * width..], &defined[6 * width..]);
    });
}
