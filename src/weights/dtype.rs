//! Element types: floats, and blocks of quantised values.

use std::fmt;

/// The element types whose values can be read as floats.
///
/// The floats widen to f32 exactly. The others are GGML's: the last dimension is cut into blocks of
/// [`block_len`](Self::block_len) values, which share scales; [`blocks`](super::blocks) states what a block's bytes mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Dtype {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// The upper half of a binary32.
    BF16,
    /// 32 values of 8 bits and a scale.
    Q8_0,
    /// 32 values of 4 bits and a scale.
    Q4_0,
    /// 32 values of 4 bits, a scale and a minimum.
    Q4_1,
    /// 32 values of 5 bits and a scale.
    Q5_0,
    /// 32 values of 5 bits, a scale and a minimum.
    Q5_1,
    /// 256 values of 4 bits, with a scale and a minimum for each 32.
    Q4K,
    /// 256 values of 5 bits, with a scale and a minimum for each 32.
    Q5K,
    /// 256 values of 6 bits, with a scale for each 16.
    Q6K,
}

impl Dtype {
    /// Every type, by the name that files give it.
    pub const ALL: &[(&str, Self)] = &[
        ("F32", Self::F32),
        ("F16", Self::F16),
        ("BF16", Self::BF16),
        ("Q8_0", Self::Q8_0),
        ("Q4_0", Self::Q4_0),
        ("Q4_1", Self::Q4_1),
        ("Q5_0", Self::Q5_0),
        ("Q5_1", Self::Q5_1),
        ("Q4_K", Self::Q4K),
        ("Q5_K", Self::Q5K),
        ("Q6_K", Self::Q6K),
    ];

    /// The type of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(known, _)| *known == name).map(|(_, dtype)| *dtype)
    }

    /// The name that files give it.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, dtype)| *dtype == self).map_or("", |(name, _)| name)
    }

    /// Elements that are stored together: 1 for floats.
    pub const fn block_len(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => 1,
            Self::Q8_0 | Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 => 32,
            Self::Q4K | Self::Q5K | Self::Q6K => 256,
        }
    }

    /// Bytes of one element, or of one block where elements come in blocks.
    pub const fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::Q8_0 => 34,
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
        }
    }

    /// Whether elements come in blocks.
    pub const fn is_block(self) -> bool {
        self.block_len() > 1
    }

    /// Whether linear layers multiply values of this type as they are stored. The others are multiplied as the F32 values
    /// that they stand for.
    pub const fn is_computed(self) -> bool {
        !matches!(self, Self::Q4_1 | Self::Q4K | Self::Q5K | Self::Q6K)
    }

    /// Bytes of a tensor of this shape; none where its rows are no whole number of blocks or the size overflows.
    pub fn bytes_of(self, shape: &[usize]) -> Option<usize> {
        if !shape.last().copied().unwrap_or(1).is_multiple_of(self.block_len()) {
            return None;
        }
        let elements = shape.iter().try_fold(1usize, |product, dim| product.checked_mul(*dim))?;
        (elements / self.block_len()).checked_mul(self.size())
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
