//! Relative positions by tables: which row a distance takes. Distances saturate, so that a table is finite.

use super::spec::{BucketSpec, DisentangledSpec};

/// A row for each distance from -reach to reach; distances beyond take the outermost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DistanceMap {
    /// The outermost distance.
    pub reach: usize,
    /// `[2 reach + 1]`
    pub rows: Vec<u32>,
}

impl DistanceMap {
    /// From a function that is monotonous beyond some distance and equals `low` and `high` from some distance on.
    fn saturating(low: u32, high: u32, row: impl Fn(i64) -> u32) -> Self {
        let mut reach = 1;
        while row(-reach) != low || row(reach) != high {
            reach += 1;
        }
        Self { reach: reach as usize, rows: (-reach..=reach).map(row).collect() }
    }
}

impl BucketSpec {
    /// The bucket of key position - query position, bidirectional, as T5 numbers them: half the buckets for each
    /// direction; half of those for one distance each, the rest logarithmic up to `max_distance`.
    ///
    /// The reference takes the logarithms in binary32; so does this, where a bucket's border falls on a distance.
    pub fn map(&self) -> DistanceMap {
        let half = self.buckets / 2;
        let exact = half / 2;
        let border = libm::log(self.max_distance as f64 / exact as f64) as f32;
        let row = |distance: i64| {
            let (side, n) = (if distance > 0 { half } else { 0 }, distance.unsigned_abs() as usize);
            let bucket = if n < exact {
                n
            } else {
                let log = libm::log(f64::from(n as f32 / exact as f32)) as f32;
                let far = exact + (log / border * (half - exact) as f32) as usize;
                far.min(half - 1)
            };
            (side + bucket) as u32
        };
        DistanceMap::saturating(half as u32 - 1, 2 * half as u32 - 1, row)
    }
}

impl DisentangledSpec {
    /// The row of the relative embedding, [2 span], for query position - key position.
    ///
    /// The reference takes the logarithms in binary32; so does this, where a bucket's border falls on a distance.
    pub fn map(&self) -> DistanceMap {
        let span = self.span as i64;
        let row = |distance: i64| (self.bucket(distance) + span).clamp(0, 2 * span - 1) as u32;
        DistanceMap::saturating(0, 2 * self.span as u32 - 1, row)
    }

    fn bucket(&self, distance: i64) -> i64 {
        let Some(to) = self.log_buckets_to else { return distance };
        let (mid, n) = (self.span as i64 / 2, distance.abs());
        if n <= mid {
            return distance;
        }
        let log = |x: f32| libm::log(f64::from(x)) as f32;
        let steps = log(n as f32 / mid as f32) / log((to as f32 - 1.0) / mid as f32) * (mid - 1) as f32;
        distance.signum() * (steps.ceil() as i64 + mid)
    }
}
