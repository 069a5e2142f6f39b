//! Rotary positions (arXiv 2104.09864): the frequencies of a model, and the angles they give.

use crate::gpu::RopeLayout;

/// One rotation of queries and keys.
///
/// Reference implementations compute frequencies and angles in binary32, and models are trained with that: powers are
/// rounded to binary32 here, and so is the product of a frequency and a position.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeSpec {
    /// Features of a head that are rotated; the rest pass.
    pub rotary_dim: usize,
    /// Which features form a pair.
    pub layout: RopeLayout,
    /// The base of the frequencies.
    pub base: f64,
    /// Turn of each pair a position, `[rotary_dim / 2]`.
    pub frequencies: Vec<f32>,
    /// What sequences beyond a length do instead.
    pub longer: Option<LongerRope>,
    /// Factor of cosines and sines.
    pub amplitude: f32,
    /// How the frequencies were rescaled, in words; empty where they were not.
    pub rescaled: String,
}

/// Frequencies of sequences longer than `trained` tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct LongerRope {
    /// The longest sequence with ordinary frequencies.
    pub trained: usize,
    /// The frequencies of the others.
    pub frequencies: LongFrequencies,
}

/// Where the frequencies of long sequences come from.
#[derive(Debug, Clone, PartialEq)]
pub enum LongFrequencies {
    /// Those of the base times (factor * length / trained - (factor - 1)) ^ (rotary_dim / (rotary_dim - 2)).
    DynamicNtk {
        /// The stretch.
        factor: f64,
    },
    /// A list of their own (LongRoPE, arXiv 2402.13753).
    Listed(Vec<f32>),
}

/// base^(-2 i / rotary_dim) for each pair i.
pub(super) fn frequencies(base: f64, rotary_dim: usize) -> Vec<f32> {
    let base = f64::from(base as f32);
    let power = |i: usize| libm::pow(base, f64::from((2 * i) as f32 / rotary_dim as f32)) as f32;
    (0..rotary_dim / 2).map(|i| 1.0 / power(i)).collect()
}

impl RopeSpec {
    /// Without any rescaling.
    pub(super) fn plain(rotary_dim: usize, layout: RopeLayout, base: f64) -> Self {
        let frequencies = frequencies(base, rotary_dim);
        Self { rotary_dim, layout, base, frequencies, longer: None, amplitude: 1.0, rescaled: String::new() }
    }

    /// Whether a sequence of this length has frequencies of its own.
    pub fn depends_on_length(&self, len: usize) -> bool {
        self.longer.as_ref().is_some_and(|l| len > l.trained)
    }

    /// A number that two lengths share when they share their frequencies.
    pub fn regime(&self, len: usize) -> usize {
        match &self.longer {
            Some(LongerRope { trained, frequencies }) if len > *trained => match frequencies {
                LongFrequencies::DynamicNtk { .. } => len,
                LongFrequencies::Listed(_) => usize::MAX,
            },
            _ => 0,
        }
    }

    fn long_frequencies(&self, len: usize) -> Option<Vec<f32>> {
        let longer = self.longer.as_ref().filter(|l| len > l.trained)?;
        Some(match &longer.frequencies {
            LongFrequencies::Listed(list) => list.clone(),
            LongFrequencies::DynamicNtk { factor } => {
                let dim = self.rotary_dim as f64;
                let stretch = factor * len as f64 / longer.trained as f64 - (factor - 1.0);
                frequencies(self.base * libm::pow(stretch, dim / (dim - 2.0)), self.rotary_dim)
            }
        })
    }

    /// Cosines and sines of `positions` in a sequence of `len` tokens, [positions, rotary_dim / 2] each.
    pub fn angles(&self, positions: impl Iterator<Item = u32>, len: usize) -> (Vec<f32>, Vec<f32>) {
        let own = self.long_frequencies(len);
        let turns = own.as_deref().unwrap_or(&self.frequencies);
        let angles = positions.flat_map(|p| turns.iter().map(move |f| f64::from(f * p as f32)));
        let amplitude = self.amplitude;
        angles.map(|a| (libm::cos(a) as f32 * amplitude, libm::sin(a) as f32 * amplitude)).unzip()
    }

    pub(super) fn in_words(&self) -> String {
        let pairs = match self.layout {
            RopeLayout::Halves => "in halves",
            RopeLayout::Interleaved => "interleaved",
        };
        let mut text = format!("rotary, {} features {pairs}, base {}", self.rotary_dim, self.base);
        match &self.longer {
            None => {}
            Some(LongerRope { trained, frequencies: LongFrequencies::DynamicNtk { factor } }) => {
                text += &format!(", dynamic NTK {factor} beyond {trained} tokens");
            }
            Some(LongerRope { trained, frequencies: LongFrequencies::Listed(_) }) => {
                text += &format!(", other frequencies beyond {trained} tokens");
            }
        }
        if !self.rescaled.is_empty() {
            text += &format!(", {}", self.rescaled);
        }
        text
    }
}
