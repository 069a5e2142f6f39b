//! Attention over a batch once more: by the contract, key by key, and in float64.

use std::ops::Range;

use kin_infer::gpu::Activation;

use super::batch::{Batch, Distances, Stages};
use super::definition::{activation, chain, sum, weights};

impl Batch {
    /// Calls `f(head, query row, rows of the keys)` in the order of a score buffer.
    fn each(&self, mut f: impl FnMut(usize, usize, Range<usize>)) {
        let mut first = 0;
        for len in &self.lengths {
            for head in 0..self.heads {
                (first..first + len).for_each(|query| f(head, query, first..first + len));
            }
            first += len;
        }
    }

    /// The first column of the key and value head that serves `head`.
    fn kv_column(&self, head: usize) -> usize {
        head / (self.heads / self.kv_heads) * self.head_dim
    }

    /// Position of row `to` - position of row `from`.
    fn distance(&self, from: usize, to: usize) -> i64 {
        i64::from(self.positions[to]) - i64::from(self.positions[from])
    }

    fn sees(&self, query: usize, key: usize) -> bool {
        let d = self.distance(query, key);
        -i64::from(self.window.behind) <= d && d <= i64::from(self.window.ahead)
    }

    /// The rows of the position tables for a query and a key: of the keys' table and of the queries'.
    fn terms(&self, head: usize, query: usize, key: usize) -> [Option<&[f32]>; 2] {
        let Distances::Terms { map, reach, keys, queries } = &self.bias else { return [None, None] };
        let at = self.distance(key, query).clamp(-(*reach as i64), *reach as i64) + *reach as i64;
        let start = map[at as usize] as usize * self.width() + head * self.head_dim;
        [keys, queries].map(|t| t.as_ref().map(|t| &t[start..start + self.head_dim]))
    }

    /// What is added to the scaled score.
    fn added(&self, head: usize, query: usize, key: usize) -> Option<f32> {
        let d = self.distance(query, key);
        match &self.bias {
            Distances::None | Distances::Terms { .. } => None,
            Distances::Alibi(slopes) => Some(-(slopes[head] * d.unsigned_abs() as f32)),
            Distances::Table { values, reach } => {
                let reach = *reach as i64;
                Some(values[head * (2 * reach as usize + 1) + (d.clamp(-reach, reach) + reach) as usize])
            }
        }
    }

    /// The contract, key by key.
    pub fn defined(&self) -> Stages {
        let mut stages =
            Stages { scores: vec![], weights: vec![], out: vec![0.0; self.positions.len() * self.width()] };
        let dot = |a: &[f32], b: &[f32]| chain(self.head_dim, |d| a[d], |d| b[d]);
        self.each(|head, query, keys| {
            let (q, column) = (self.part(0, query, head * self.head_dim), self.kv_column(head));
            let score = |key: usize| {
                let k = self.part(1, key, column);
                let [position_key, position_query] = self.terms(head, query, key);
                let score = dot(q, k);
                let score = position_key.map_or(score, |p| score + dot(q, p));
                position_query.map_or(score, |p| score + dot(k, p))
            };
            let scores: Vec<f32> = keys.clone().map(score).collect();
            let weights = self.weigh(head, query, keys.clone(), &scores);
            for d in 0..self.head_dim {
                let mut o = 0f32;
                for (block, weights) in weights.chunks(512).enumerate() {
                    let mut chain = 0f32;
                    for (key, weight) in (keys.start + 512 * block..).zip(weights) {
                        if self.sees(query, key) {
                            chain = weight.mul_add(self.part(2, key, column)[d], chain);
                        }
                    }
                    o += chain;
                }
                stages.out[query * self.width() + head * self.head_dim + d] = o;
            }
            stages.scores.extend(scores);
            stages.weights.extend(weights);
        });
        stages
    }

    /// Softmax over the keys of the window; the others weigh +0.
    fn weigh(&self, head: usize, query: usize, keys: Range<usize>, scores: &[f32]) -> Vec<f32> {
        let seen: Vec<bool> = keys.clone().map(|key| self.sees(query, key)).collect();
        let scaled = |j: usize| {
            let added = self.added(head, query, keys.start + j);
            match self.softcap {
                None => added.map_or(scores[j] * self.scale, |b| scores[j].mul_add(self.scale, b)),
                Some(cap) => {
                    let z = activation(Activation::Tanh, scores[j] * self.scale / cap) * cap;
                    added.map_or(z, |b| z + b)
                }
            }
        };
        let z: Vec<f32> = (0..keys.len()).map(|j| if seen[j] { scaled(j) } else { 0.0 }).collect();
        let visible = |j: &usize| seen[*j];
        let top = (0..z.len()).filter(visible).fold(f32::NEG_INFINITY, |top, j| if top < z[j] { z[j] } else { top });
        let mut e = weights(&z, top);
        (0..e.len()).filter(|j| !seen[*j]).for_each(|j| e[j] = 0.0);
        let inverse = 1.0 / sum(&e);
        (0..e.len()).map(|j| if seen[j] { e[j] * inverse } else { 0.0 }).collect()
    }

    pub fn exact(&self) -> Vec<f64> {
        let mut out = vec![0.0; self.positions.len() * self.width()];
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
        self.each(|head, query, keys| {
            let (q, column) = (self.part(0, query, head * self.head_dim), self.kv_column(head));
            let score = |key: usize| {
                let k = self.part(1, key, column);
                let [position_key, position_query] = self.terms(head, query, key);
                let raw =
                    dot(q, k) + position_key.map_or(0.0, |p| dot(q, p)) + position_query.map_or(0.0, |p| dot(k, p));
                let z = raw * f64::from(self.scale);
                let z = self.softcap.map_or(z, |c| f64::from(c) * libm::tanh(z / f64::from(c)));
                z + self.added(head, query, key).map_or(0.0, f64::from)
            };
            let seen: Vec<usize> = keys.filter(|key| self.sees(query, *key)).collect();
            let scores: Vec<f64> = seen.iter().map(|key| score(*key)).collect();
            let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let e: Vec<f64> = scores.iter().map(|s| libm::exp(s - top)).collect();
            let total: f64 = e.iter().sum();
            for (key, e) in seen.iter().zip(&e) {
                for (d, v) in self.part(2, *key, column).iter().enumerate() {
                    out[query * self.width() + head * self.head_dim + d] += e / total * f64::from(*v);
                }
            }
        });
        out
    }
}
