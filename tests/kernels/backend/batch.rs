//! A packed batch of queries, keys and values with everything that may happen to its scores, run by a backend.

use kin_infer::gpu::{AttentionShape, Columns, Disentangled, GpuBackend, GpuCompute, KeyWindow, ScoreBias, Segments};

use super::composed::Composed;
use super::definition::{Random, each_backend, same, with_threads};
use super::{close, stale, values};

/// What distances add to scores, over host values.
#[derive(Clone)]
pub enum Distances {
    None,
    Alibi(Vec<f32>),
    Table { values: Vec<f32>, reach: usize },
    Terms { map: Vec<u32>, reach: usize, keys: Option<Vec<f32>>, queries: Option<Vec<f32>> },
}

/// Where the tokens of a sequence stand.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Spread {
    Consecutive,
    /// Every seventh position is left out.
    Gapped,
    /// Runs of neighbours, and gaps of up to some hundred positions; the first is not 0.
    Wild,
}

/// Queries, keys and values side by side, [rows, 3 * width], of which a key head may leave columns unused.
#[derive(Clone)]
pub struct Batch {
    pub lengths: Vec<usize>,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub scale: f32,
    pub positions: Vec<u32>,
    pub packed: Vec<f32>,
    pub bias: Distances,
    pub window: KeyWindow,
    pub softcap: Option<f32>,
}

/// Attention step by step: raw scores and weights, [heads, len, len] a sequence, and the output.
pub struct Stages {
    pub scores: Vec<f32>,
    pub weights: Vec<f32>,
    pub out: Vec<f32>,
}

impl Batch {
    pub fn new(lengths: &[usize], (heads, kv_heads, head_dim): (usize, usize, usize), seed: u64) -> Self {
        let rows = lengths.iter().sum::<usize>();
        let batch = Self {
            lengths: lengths.to_vec(),
            heads,
            kv_heads,
            head_dim,
            scale: 1.0 / (head_dim as f32).sqrt(),
            positions: Vec::new(),
            packed: Random::new(seed).vector(rows * 3 * heads * head_dim, 2.0),
            bias: Distances::None,
            window: KeyWindow::ALL,
            softcap: None,
        };
        batch.spread(Spread::Gapped)
    }

    pub fn spread(mut self, spread: Spread) -> Self {
        let mut random = Random::new(self.positions.len() as u64);
        self.positions.clear();
        for len in &self.lengths {
            let mut at = if spread == Spread::Wild { 7 } else { 0 };
            for i in 0..*len as u32 {
                self.positions.push(match spread {
                    Spread::Consecutive => i,
                    Spread::Gapped => i + i / 6,
                    Spread::Wild => at,
                });
                let jump = if random.bits().is_multiple_of(50) { 300 } else { 30 };
                at += if random.bits().is_multiple_of(4) { 1 + (random.bits() % jump) as u32 } else { 1 };
            }
        }
        self
    }

    pub fn alibi(mut self) -> Self {
        let slope = |h: usize| 2f32.powf(-8.0 * (h + 1) as f32 / self.heads as f32);
        self.bias = Distances::Alibi((0..self.heads).map(slope).collect());
        self
    }

    pub fn distances(mut self, reach: usize) -> Self {
        let values = Random::new(reach as u64).vector(self.heads * (2 * reach + 1), 3.0);
        self.bias = Distances::Table { values, reach };
        self
    }

    /// Both terms, or the one asked for, over a map that skips some rows and gives others to several distances.
    pub fn disentangled(mut self, reach: usize, content_to_position: bool, position_to_content: bool) -> Self {
        let mut random = Random::new(reach as u64);
        let mut row = (random.bits() % 3) as u32;
        let mut map = Vec::new();
        for _ in 0..2 * reach + 1 {
            map.push(row);
            row += [0, 1, 1, 3][(random.bits() % 4) as usize];
        }
        let len = (row as usize + 2) * self.width();
        let mut table = |there: bool| there.then(|| random.vector(len, 2.0));
        let (keys, queries) = (table(content_to_position), table(position_to_content));
        self.bias = Distances::Terms { map, reach, keys, queries };
        let terms = 1 + usize::from(content_to_position) + usize::from(position_to_content);
        self.scale = 1.0 / ((terms * self.head_dim) as f32).sqrt();
        self
    }

    pub fn window(self, behind: u32, ahead: u32) -> Self {
        Self { window: KeyWindow { behind, ahead }, ..self }
    }

    pub fn softcap(self, cap: f32) -> Self {
        Self { softcap: Some(cap), ..self }
    }

    pub fn width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Sequence i alone.
    pub fn alone(&self, i: usize) -> Self {
        let first = self.lengths[..i].iter().sum::<usize>();
        let rows = first..first + self.lengths[i];
        let stride = 3 * self.width();
        Self {
            lengths: vec![self.lengths[i]],
            positions: self.positions[rows.clone()].to_vec(),
            packed: self.packed[rows.start * stride..rows.end * stride].to_vec(),
            ..self.clone()
        }
    }

    /// The values of a row's query (part 0), key (1) or value (2) from a column on.
    pub fn part(&self, part: usize, row: usize, column: usize) -> &[f32] {
        &self.packed[row * 3 * self.width() + part * self.width() + column..][..self.head_dim]
    }

    /// Calls `f` with the shape and the views of queries, keys and values, uploaded.
    fn uploaded<T>(&self, c: &dyn GpuCompute, f: impl FnOnce(&AttentionShape, [Columns; 3]) -> T) -> T {
        let up = |v: &[f32]| c.upload(v).unwrap();
        let segments = Segments::from_lengths(self.lengths.iter().copied());
        let (packed, positions) = (up(&self.packed), c.upload_index(&self.positions).unwrap());
        let (table, keys_table, queries_table, rows);
        let bias = match &self.bias {
            Distances::None => ScoreBias::None,
            Distances::Alibi(slopes) => {
                table = up(slopes);
                ScoreBias::Alibi { slopes: &table }
            }
            Distances::Table { values, reach } => {
                table = up(values);
                ScoreBias::Distance { table: &table, reach: *reach }
            }
            Distances::Terms { map, reach, keys, queries } => {
                (keys_table, queries_table) = (keys.as_deref().map(up), queries.as_deref().map(up));
                rows = c.upload_index(map).unwrap();
                ScoreBias::Disentangled(Disentangled {
                    map: &rows,
                    reach: *reach,
                    position_keys: keys_table.as_ref(),
                    position_queries: queries_table.as_ref(),
                })
            }
        };
        let shape = AttentionShape {
            segments: &segments,
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            scale: self.scale,
            positions: &positions,
            bias,
            window: self.window,
            softcap: self.softcap,
        };
        let view = |i: usize| Columns { buffer: &packed, first: i * self.width(), stride: 3 * self.width() };
        f(&shape, [view(0), view(1), view(2)])
    }

    /// The trait's `attention`.
    pub fn run(&self, c: &dyn GpuCompute) -> Vec<f32> {
        self.uploaded(c, |shape, [q, k, v]| {
            let mut out = stale(c, shape.segments.total() * self.width());
            c.attention(q, k, v, shape, &mut out).unwrap();
            values(c, &out)
        })
    }

    /// The primitives, each result read back.
    pub fn stages(&self, c: &dyn GpuCompute) -> Stages {
        self.uploaded(c, |shape, [q, k, v]| {
            let (mut buffer, mut out) = (stale(c, shape.score_len()), stale(c, shape.segments.total() * self.width()));
            c.attention_scores(q, k, shape, &mut buffer).unwrap();
            let scores = values(c, &buffer);
            c.softmax(&mut buffer, shape).unwrap();
            c.attention_values(&buffer, v, shape, &mut out).unwrap();
            Stages { scores, weights: values(c, &buffer), out: values(c, &out) }
        })
    }

    /// The fused operation, its composition and its primitives, alone and together, on 1 and 2 threads: the contract's
    /// bits, near float64.
    pub fn check(&self, name: &str) {
        let (defined, exact) = (self.defined(), self.exact());
        each_backend(&format!("attention {name}"), |backend, compute| {
            let case = |what: &str| format!("{backend} attention {name}, {what}");
            let fused = self.run(compute);
            close(|| case("float64"), &fused, &exact, 1e-5);
            same(|| case("the contract"), &fused, &defined.out);
            let stages = self.stages(compute);
            same(|| case("scores"), &stages.scores, &defined.scores);
            same(|| case("weights"), &stages.weights, &defined.weights);
            same(|| case("values"), &stages.out, &defined.out);
            // The emulated GPU is slow and has no threads of its own; its batches are tested as whole models.
            if compute.backend() != GpuBackend::Cpu {
                return;
            }
            same(|| case("composed"), &self.run(&Composed(compute)), &defined.out);
            for threads in [1, 2] {
                same(|| case("threads"), &with_threads(threads, || self.run(compute)), &defined.out);
            }
            let alone: Vec<f32> = (0..self.lengths.len()).flat_map(|i| self.alone(i).run(compute)).collect();
            same(|| case("alone"), &alone, &defined.out);
        });
    }
}
