//! How blocks lie in a panel: the 16 columns of 32 k together, in the bits that the file's integers take.
//!
//! Integers are stored without their sign, too large by the type's centre. Words of 32 bits hold several k of a column, of
//! every column in turn, so that one register has the same k of as many columns as it has lanes. Four words hold a set of k:
//! the first one the first of each four of the set, from its lowest bits up, and so on.
//!
//! ```text
//! 4 bits      one set of 32 k: [k % 4][column], k / 4 being the place in the word
//! 8 bits      two sets of 16 k: [k / 16][k % 4][column], k % 16 / 4 being the place in the word
//! 5, 6 bits   the same bytes cut: 256 bytes, each the low 4 bits of the byte b of 8-bit integers, and of b + 256;
//!             then 64 bytes, of which b holds the fifth bits of the bytes b + 64 j in its bits j,
//!             or 128 bytes, of which b holds the high bits of the bytes b + 128 j in its bits 2 j
//! scales      of blocks of 32: 16 scales, then 16 minima, binary16
//!             of blocks of 256: 16 multiples for each 16 or 32 k, then 16 of minima, signed bytes; before
//!             the eight groups of 32, their 16 scales, then their 16 minima, binary16
//! ```

use super::super::simd::PANEL;
use crate::weights::Dtype;
use crate::weights::blocks::{PART, Part, centre, has_minima};

/// Groups of 32 that a block of 256 has.
const GROUPS: usize = 8;

/// Bytes of the integers of 32 k when each has its byte.
pub(super) const BYTES: usize = PART * PANEL;

/// Words of a column that hold a set of k.
pub(super) const WORDS: usize = 4;

/// A type's layout.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    /// Bits of an integer.
    pub bits: usize,
    /// What stored integers are too large by.
    pub centre: u8,
    /// Whether scales are multiples of a block of 256's.
    pub multiples: bool,
    pub minima: bool,
    /// Scales of 32 k: 1 or 2.
    pub scales: usize,
}

impl Layout {
    /// That of a type of block.
    pub const fn of(dtype: Dtype) -> Self {
        let (bits, centre) = match dtype {
            Dtype::Q4_0 | Dtype::Q4_1 | Dtype::Q4K => (4, centre(dtype)),
            Dtype::Q5_0 | Dtype::Q5_1 | Dtype::Q5K => (5, centre(dtype)),
            Dtype::Q6K => (6, centre(dtype)),
            _ => (8, 128),
        };
        let scales = if matches!(dtype, Dtype::Q6K) { 2 } else { 1 };
        Self { bits, centre, multiples: dtype.block_len() > PART, minima: has_minima(dtype), scales }
    }

    /// Bytes of the integers of 32 k.
    pub const fn integers(self) -> usize {
        self.bits * BYTES / 8
    }

    /// Bytes of 32 k.
    pub const fn group(self) -> usize {
        let scales = (self.scales + self.minima as usize) * PANEL;
        self.integers() + if self.multiples { scales } else { 2 * scales }
    }

    /// Bytes before the groups of a block of 256.
    pub const fn head(self) -> usize {
        if self.multiples { (1 + self.minima as usize) * PANEL * 2 } else { 0 }
    }

    /// Where the scales of the block of a group of 32 begin, and where the group does.
    pub const fn place(self, group: usize) -> (usize, usize) {
        if self.multiples {
            let block = group / GROUPS * (self.head() + GROUPS * self.group());
            (block, block + self.head() + group % GROUPS * self.group())
        } else {
            (group * self.group() + self.integers(), group * self.group())
        }
    }

    /// Bytes of a panel of so many k, whole blocks.
    pub const fn panel(self, k: usize) -> usize {
        let groups = k / PART;
        groups * self.group() + groups / GROUPS * self.head()
    }

    /// Writes a part of a file's block as a column of its group of 32 k, which was zero.
    pub fn write(self, part: &Part, group: usize, column: usize, panel: &mut [u8]) {
        let (head, at) = self.place(group);
        let stored = part.q.map(|q| (q as u8).wrapping_add(self.centre));
        self.write_integers(&stored, column, &mut panel[at..][..self.integers()]);
        let halves = [part.d, part.minimum];
        for (i, half) in halves.iter().take(1 + usize::from(self.minima)).enumerate() {
            panel[head + (i * PANEL + column) * 2..][..2].copy_from_slice(&half.to_le_bytes());
        }
        if self.multiples {
            let minimum = self.minima.then_some(part.minimum_multiple);
            for (i, multiple) in part.multiples.into_iter().take(self.scales).chain(minimum).enumerate() {
                panel[at + self.integers() + i * PANEL + column] = multiple as u8;
            }
        }
    }

    /// Bits that an integer takes of a word.
    pub const fn field(self) -> usize {
        if self.bits == 4 { 4 } else { 8 }
    }

    fn write_integers(self, stored: &[u8; PART], column: usize, out: &mut [u8]) {
        let field = self.field();
        let set = WORDS * 32 / field;
        let (step, rows) = high_bits(self.bits);
        for (k, q) in stored.iter().enumerate() {
            let (word, bit) = (k / set * WORDS + k % WORDS, k % set / WORDS * field);
            let at = (word * PANEL + column) * 4 + bit / 8;
            match self.bits {
                4 | 8 => out[at] |= q << (bit % 8),
                _ => {
                    let (low, high) = out.split_at_mut(BYTES / 2);
                    low[at % (BYTES / 2)] |= (q & 15) << (at / (BYTES / 2) * 4);
                    high[at % rows] |= q >> 4 << (at / rows * step);
                }
            }
        }
    }
}

/// Bits of a 5- or 6-bit integer above the fourth, and bytes that hold those of all.
pub(super) const fn high_bits(bits: usize) -> (usize, usize) {
    let high = bits.saturating_sub(4);
    (high, high * BYTES / 8)
}
