//! What attention's kernels work through: tiles of up to 32 queries of a sequence, as kernels/attention.h describes them.

use std::ops::Range;

use super::args::*;
use super::word;
use crate::gpu::Segments;

/// Queries of a tile.
const QUERIES: usize = TILE_QUERIES as usize;

/// Consecutive queries of one sequence.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    /// The first query's row in the batch, and its number among the sequence's keys.
    pub row: usize,
    pub query: usize,
    pub count: usize,
    /// Where the sequence's keys are: key 0's row, or the place of its first block's number.
    pub keys: usize,
    pub len: usize,
}

impl Tile {
    /// Scores of one head.
    pub fn scores(&self) -> usize {
        self.count * self.len
    }

    /// Its words, with scores that begin at `scores` and heads `stride` apart.
    pub fn words(&self, scores: usize, stride: usize) -> [u32; TILE_WORDS as usize] {
        let mut words = [0; TILE_WORDS as usize];
        for (at, value) in [
            (TILE_ROW, self.row),
            (TILE_QUERY, self.query),
            (TILE_COUNT, self.count),
            (TILE_KEYS, self.keys),
            (TILE_LEN, self.len),
            (TILE_SCORES, scores),
            (TILE_STRIDE, stride),
        ] {
            words[at as usize] = word(value);
        }
        words
    }
}

/// The tiles of `rows`, the last of a sequence of `len` keys.
pub(super) fn of_sequence(rows: Range<usize>, keys: usize, len: usize) -> impl Iterator<Item = Tile> {
    let first = len - rows.len();
    rows.clone().step_by(QUERIES).map(move |row| Tile {
        row,
        query: first + row - rows.start,
        count: QUERIES.min(rows.end - row),
        keys,
        len,
    })
}

/// The tiles of whole sequences.
pub(super) fn of_segments(segments: &Segments) -> Vec<Tile> {
    segments.iter().flat_map(|r| of_sequence(r.clone(), r.start, r.len())).collect()
}

/// How many of the tiles are whole sequences: those that lie in the first `count`, or the first sequence's if it does not.
pub(super) fn whole_sequences(tiles: &[Tile], count: usize) -> usize {
    let Some(cut) = tiles.get(count).map(|next| next.keys) else { return tiles.len() };
    match tiles[..count].iter().rposition(|tile| tile.keys != cut) {
        Some(last) => last + 1,
        None => tiles.iter().position(|tile| tile.keys != cut).unwrap_or(tiles.len()),
    }
}

/// Where the scores of a launch's tiles lie.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    /// Tile after tile, [heads, count, len] each.
    Tiles {
        /// Heads of the launch.
        heads: usize,
    },
    /// Sequence after sequence, [heads, len, len] each; tiles are those of whole segments.
    Sequences {
        /// All heads.
        heads: usize,
    },
}

/// The tiles' words, and the values that their scores take.
pub(super) fn words(tiles: &[Tile], layout: Layout) -> (Vec<u32>, usize) {
    let mut words = Vec::with_capacity(tiles.len() * TILE_WORDS as usize);
    let mut end = 0;
    for tile in tiles {
        let (scores, stride) = match layout {
            Layout::Tiles { .. } => (end, tile.count * tile.len),
            Layout::Sequences { .. } => (end, tile.len * tile.len),
        };
        words.extend(tile.words(scores, stride));
        match layout {
            Layout::Tiles { heads } => end += heads * tile.count * tile.len,
            // The sequence's next tile lies after this one's rows, the next sequence after all heads of this.
            Layout::Sequences { heads } if tile.query + tile.count == tile.len => {
                end += heads * tile.len * tile.len - tile.query * tile.len;
            }
            Layout::Sequences { .. } => end += tile.count * tile.len,
        }
    }
    (words, end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_lie_sequence_after_sequence() {
        let tiles = of_segments(&Segments::from_lengths([3, 0, 70, 1]));
        let (table, end) = words(&tiles, Layout::Sequences { heads: 2 });
        let rows: Vec<Vec<u32>> = table.chunks(8).map(<[u32]>::to_vec).collect();
        let second = 2 * 3 * 3;
        assert_eq!(rows[0], [0, 0, 3, 0, 3, 0, 9, 0]);
        assert_eq!(rows[1], [3, 0, 32, 3, 70, second, 4900, 0]);
        assert_eq!(rows[2], [35, 32, 32, 3, 70, second + 32 * 70, 4900, 0]);
        assert_eq!(rows[3], [67, 64, 6, 3, 70, second + 64 * 70, 4900, 0]);
        assert_eq!(rows[4], [73, 0, 1, 73, 1, second + 2 * 4900, 1, 0]);
        assert_eq!((rows.len(), end), (5, second as usize + 2 * 4900 + 2));
    }

    /// Sequences of 1, 3, 2 and 3 tiles.
    #[test]
    fn sequences_are_not_cut() {
        let tiles = of_segments(&Segments::from_lengths([5, 0, 70, 64, 65]));
        let whole: Vec<usize> = (1..=10).map(|count| whole_sequences(&tiles, count)).collect();
        assert_eq!(whole, [1, 1, 1, 4, 4, 6, 6, 6, 9, 9]);
        assert_eq!((1..6).map(|count| whole_sequences(&tiles[1..], count)).collect::<Vec<_>>(), [3, 3, 3, 3, 5]);
    }

    #[test]
    fn scores_lie_tile_after_tile() {
        let tiles: Vec<Tile> = of_sequence(10..45, 7, 100).collect();
        let (table, end) = words(&tiles, Layout::Tiles { heads: 3 });
        assert_eq!(table[..8], [10, 65, 32, 7, 100, 0, 3200, 0]);
        assert_eq!(table[8..], [42, 97, 3, 7, 100, 9600, 300, 0]);
        assert_eq!(end, 9600 + 900);
    }
}
