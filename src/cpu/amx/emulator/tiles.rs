//! The tiles of a thread and what instructions do to them, as Intel's manual defines it for palette 1. What faults there
//! is an error here; what the manual leaves to an implementation, such as tiles without a shape, is one too.

/// Tiles of palette 1, their rows, and bytes of a row.
const TILES: usize = 8;
const ROWS: usize = 16;
const BYTES: usize = 64;

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Tile {
    rows: usize,
    bytes: usize,
    /// Zero beyond the tile's rows and bytes.
    data: [[u8; BYTES]; ROWS],
}

pub struct Tiles {
    configured: bool,
    tiles: [Tile; TILES],
}

/// Whether the bytes of rows, and those of columns, have signs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signs {
    pub rows: bool,
    pub columns: bool,
}

impl Tiles {
    pub const fn new() -> Self {
        Self { configured: false, tiles: [Tile { rows: 0, bytes: 0, data: [[0; BYTES]; ROWS] }; TILES] }
    }

    /// LDTILECFG.
    pub fn configure(&mut self, from: &[u8; 64]) -> Result<(), &'static str> {
        if from[0] == 0 {
            self.release();
            return Ok(());
        }
        if from[0] != 1 {
            return Err("ldtilecfg: an unknown palette");
        }
        if from[1] != 0 {
            return Err("ldtilecfg: a start row");
        }
        if from[2..16].iter().chain(&from[32..48]).chain(&from[56..]).any(|b| *b != 0) {
            return Err("ldtilecfg: reserved bytes that are not zero");
        }
        let mut tiles = Self::new();
        tiles.configured = true;
        for (i, tile) in tiles.tiles.iter_mut().enumerate() {
            tile.bytes = usize::from(u16::from_le_bytes([from[16 + 2 * i], from[17 + 2 * i]]));
            tile.rows = usize::from(from[48 + i]);
            if tile.bytes > BYTES || tile.rows > ROWS {
                return Err("ldtilecfg: a tile that is too large");
            }
            if (tile.bytes == 0) != (tile.rows == 0) {
                return Err("ldtilecfg: a tile with rows or bytes alone");
            }
        }
        *self = tiles;
        Ok(())
    }

    /// TILERELEASE.
    pub fn release(&mut self) {
        *self = Self::new();
    }

    fn tile(&mut self, at: usize) -> Result<&mut Tile, &'static str> {
        if !self.configured {
            return Err("a tile is used where none is configured");
        }
        match self.tiles.get_mut(at) {
            Some(tile) if tile.rows > 0 => Ok(tile),
            _ => Err("a tile without a shape is used"),
        }
    }

    /// TILEZERO.
    pub fn zero(&mut self, at: usize) -> Result<(), &'static str> {
        self.tile(at)?.data = [[0; BYTES]; ROWS];
        Ok(())
    }

    /// TILELOADD.
    ///
    /// # Safety
    /// The tile's rows can be read, `stride` bytes apart.
    pub unsafe fn load(&mut self, at: usize, from: *const u8, stride: isize) -> Result<(), &'static str> {
        let tile = self.tile(at)?;
        tile.data = [[0; BYTES]; ROWS];
        for (row, data) in tile.data.iter_mut().enumerate().take(tile.rows) {
            let from = from.wrapping_offset(row as isize * stride);
            // SAFETY: forwarded; a row has at most BYTES bytes.
            unsafe { std::ptr::copy_nonoverlapping(from, data.as_mut_ptr(), tile.bytes) };
        }
        Ok(())
    }

    /// TILESTORED.
    ///
    /// # Safety
    /// The tile's rows can be written, `stride` bytes apart.
    pub unsafe fn store(&mut self, at: usize, to: *mut u8, stride: isize) -> Result<(), &'static str> {
        let tile = self.tile(at)?;
        for (row, data) in tile.data.iter().enumerate().take(tile.rows) {
            let to = to.wrapping_offset(row as isize * stride);
            // SAFETY: forwarded; a row has at most BYTES bytes.
            unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), to, tile.bytes) };
        }
        Ok(())
    }

    /// TDPBSSD, TDPBSUD, TDPBUSD, TDPBUUD: adds the product of the tiles `a` and `b` to the tile `sums`.
    pub fn multiply(&mut self, signs: Signs, sums: usize, a: usize, b: usize) -> Result<(), &'static str> {
        if sums == a || sums == b || a == b {
            return Err("a product of one tile with itself");
        }
        let (a, b) = (*self.tile(a)?, *self.tile(b)?);
        let sums = self.tile(sums)?;
        if [sums.bytes, a.bytes, b.bytes].iter().any(|bytes| bytes % 4 != 0) {
            return Err("a product of rows that are not whole quads");
        }
        if sums.rows != a.rows || sums.bytes != b.bytes || a.bytes / 4 != b.rows {
            return Err("a product of tiles whose shapes do not fit");
        }
        let wide = |byte: u8, sign: bool| if sign { i32::from(byte as i8) } else { i32::from(byte) };
        for (row, out) in sums.data.iter_mut().enumerate().take(sums.rows) {
            let mut totals = [0i32; BYTES / 4];
            for quad in 0..b.rows {
                let x: [i32; 4] = std::array::from_fn(|i| wide(a.data[row][4 * quad + i], signs.rows));
                for (total, y) in totals.iter_mut().zip(b.data[quad].chunks_exact(4)) {
                    for (x, y) in x.iter().zip(y) {
                        *total = total.wrapping_add(x * wide(*y, signs.columns));
                    }
                }
            }
            for (value, total) in out.chunks_exact_mut(4).zip(totals) {
                let sum = i32::from_le_bytes([value[0], value[1], value[2], value[3]]);
                value.copy_from_slice(&sum.wrapping_add(total).to_le_bytes());
            }
            out[sums.bytes..].fill(0);
        }
        Ok(())
    }
}
