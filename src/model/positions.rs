//! What distances do to attention scores, on a backend: slopes, tables, maps and angles.

use std::sync::{Arc, Mutex};

use super::weights::{Layer, Loader};
use crate::arch::{RopeSpec, ScorePositions};
use crate::batch::PackedBatch;
use crate::error::Result;
use crate::gpu::{Buffer, Disentangled, GpuCompute, IndexBuffer, ScoreBias};

pub(super) enum Positions {
    None,
    /// The slope of each head.
    Alibi(Buffer),
    /// [heads, 2 reach + 1]
    Distance {
        table: Buffer,
        reach: usize,
    },
    /// The row of the relative embedding for each distance.
    Disentangled {
        map: IndexBuffer,
        reach: usize,
    },
    Rope(Vec<Rotation>),
}

/// One rotation, and the angles of the positions seen so far.
pub(super) struct Rotation {
    spec: RopeSpec,
    known: Mutex<Option<(usize, Arc<Table>)>>,
}

struct Table {
    cos: Buffer,
    sin: Buffer,
}

/// The angles of a batch: row `rows[t]` of the tables belongs to token t.
pub(super) struct Angles {
    table: Arc<Table>,
    rows: IndexBuffer,
}

impl Angles {
    pub fn cos(&self) -> &Buffer {
        &self.table.cos
    }

    pub fn sin(&self) -> &Buffer {
        &self.table.sin
    }

    pub fn rows(&self) -> &IndexBuffer {
        &self.rows
    }
}

/// Positions for which angles are computed at least: most texts need no more.
const FIRST_POSITIONS: usize = 512;

/// Positions up to which a table holds every one; sequences that reach farther have rows of their own tokens.
const MOST_POSITIONS: usize = 1 << 18;

impl Rotation {
    fn new(spec: &RopeSpec) -> Self {
        Self { spec: spec.clone(), known: Mutex::default() }
    }

    pub fn spec(&self) -> &RopeSpec {
        &self.spec
    }

    /// The angles of a batch. A sequence whose frequencies depend on its length has rows of its own.
    pub fn angles(&self, compute: &dyn GpuCompute, batch: &PackedBatch) -> Result<Angles> {
        let longest = batch.lengths.iter().copied().max().unwrap_or(0);
        if longest <= MOST_POSITIONS && !self.spec.depends_on_length(longest) {
            return Ok(Angles { table: self.table(compute, longest)?, rows: compute.upload_index(&batch.positions)? });
        }
        let (mut cos, mut sin) = (Vec::new(), Vec::new());
        for (segment, len) in batch.segments.iter().zip(&batch.lengths) {
            let (c, s) = self.spec.angles(batch.positions[segment].iter().copied(), *len);
            cos.extend(c);
            sin.extend(s);
        }
        let table = Table { cos: compute.upload(&cos)?, sin: compute.upload(&sin)? };
        let rows: Vec<u32> = (0..batch.positions.len() as u32).collect();
        Ok(Angles { table: Arc::new(table), rows: compute.upload_index(&rows)? })
    }

    /// Tables of at least the first `positions` positions.
    fn table(&self, compute: &dyn GpuCompute, positions: usize) -> Result<Arc<Table>> {
        let mut known = self.known.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some((_, table)) = known.as_ref().filter(|(count, _)| *count >= positions) {
            return Ok(Arc::clone(table));
        }
        let count = positions.max(FIRST_POSITIONS).next_power_of_two();
        let (cos, sin) = self.spec.angles(0..count as u32, 0);
        let table = Arc::new(Table { cos: compute.upload(&cos)?, sin: compute.upload(&sin)? });
        *known = Some((count, Arc::clone(&table)));
        Ok(table)
    }
}

impl Positions {
    pub fn load(loader: &Loader) -> Result<Self> {
        let (attention, compute) = (&loader.spec.attention, loader.compute);
        Ok(match &attention.positions {
            ScorePositions::None => Self::None,
            ScorePositions::Alibi => Self::Alibi(compute.upload(&alibi_slopes(attention.heads))?),
            ScorePositions::Rope(ropes) => Self::Rope(ropes.iter().map(Rotation::new).collect()),
            ScorePositions::Buckets(spec) => {
                let (map, values) = (spec.map(), loader.values("buckets")?);
                let heads = attention.heads;
                let of_head = |h: usize| {
                    let values = &values;
                    map.rows.iter().map(move |row| values[*row as usize * heads + h])
                };
                let table: Vec<f32> = (0..heads).flat_map(of_head).collect();
                Self::Distance { table: compute.upload(&table)?, reach: map.reach }
            }
            ScorePositions::Disentangled(spec) => {
                let map = spec.map();
                Self::Disentangled { map: compute.upload_index(&map.rows)?, reach: map.reach }
            }
        })
    }

    /// The bias of a layer's scores.
    pub fn bias<'a>(&'a self, layer: &'a Layer) -> ScoreBias<'a> {
        match self {
            Self::None | Self::Rope(_) => ScoreBias::None,
            Self::Alibi(slopes) => ScoreBias::Alibi { slopes },
            Self::Distance { table, reach } => ScoreBias::Distance { table, reach: *reach },
            Self::Disentangled { map, reach } => ScoreBias::Disentangled(Disentangled {
                map,
                reach: *reach,
                position_keys: layer.position_keys.as_ref(),
                position_queries: layer.position_queries.as_ref(),
            }),
        }
    }

    /// A number for each rotation that two lengths share when their keys are rotated alike.
    pub fn regime(&self, len: usize) -> Vec<usize> {
        self.rotations().iter().map(|r| r.spec.regime(len)).collect()
    }

    /// The rotations; none but with rotary positions.
    pub fn rotations(&self) -> &[Rotation] {
        match self {
            Self::Rope(rotations) => rotations,
            _ => &[],
        }
    }
}

/// Slopes of ALiBi for any number of heads: 2^(-8 (h + 1) / n) for a power of two n; else those of the largest power
/// of two n' below it, then every other slope of 2 n'.
fn alibi_slopes(heads: usize) -> Vec<f32> {
    let whole = 1usize << heads.ilog2();
    let slope = |h: usize, n: usize| libm::exp2(-8.0 * (h + 1) as f64 / n as f64) as f32;
    let first = (0..whole).map(|h| slope(h, whole));
    first.chain((0..heads - whole).map(|h| slope(2 * h, 2 * whole))).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn alibi_slopes_follow_the_papers_rule() {
        assert_eq!(super::alibi_slopes(4), [0.25, 0.0625, 0.015625, 0.00390625]);
        assert_eq!(super::alibi_slopes(6), [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125]);
        assert_eq!(super::alibi_slopes(1), [0.00390625]);
    }
}
