//! Intel's AMX: eight tile registers of at most 16 rows of 64 bytes, and an instruction that adds, to a tile of sums, the
//! product of a tile of rows and a tile of columns.
//!
//! The columns' tile holds quads of k, `[quad][column 0..16][4]`: a panel as it is stored. Tiles 0..=3 are sums, 4 and 5
//! rows of activations, 6 and 7 weights. Between [`Tiles::configure`] and the end of its life a thread's tiles have one
//! shape; the tiles' values live inside one `asm!` block, from the instruction that zeroes sums to the one that stores
//! them, as nothing between two blocks could say that they are in use.

#[cfg(all(test, target_os = "linux"))]
pub(super) mod emulator;
#[cfg(all(test, target_os = "linux"))]
mod guarded;
#[cfg(test)]
mod tests;

use std::arch::asm;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;

use super::simd::PANEL;

/// Most rows of a tile.
pub(super) const TILE_ROWS: usize = 16;

/// Most bytes of a tile's row: 64 k of activations, a quad of weights for each column of a panel, a sum for each.
pub(super) const TILE_BYTES: usize = 64;

/// i32 values of a tile of sums.
pub(super) const TILE_SUMS: usize = TILE_ROWS * PANEL;

/// What LDTILECFG reads.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    /// Bytes of a row.
    bytes: [u16; 16],
    rows: [u8; 16],
}

/// This thread's tiles, in one shape. They are released at the end, so that the system has no tiles to keep when it
/// lets another thread run.
pub(super) struct Tiles {
    /// Tiles are a thread's.
    of_thread: PhantomData<*const ()>,
}

impl Tiles {
    /// Tiles for products of `rows` rows, 1 to 16, over `k` values, a multiple of 4 up to 64: sums of `rows` by 16,
    /// activations of `rows` by `k` bytes, weights of `k / 4` quads.
    ///
    /// # Safety
    /// AMX is granted, or emulated; this thread has no other tiles.
    pub unsafe fn configure(rows: usize, k: usize) -> Self {
        assert!((1..=TILE_ROWS).contains(&rows) && (4..=TILE_BYTES).contains(&k) && k.is_multiple_of(4));
        let (rows, quads) = (rows as u8, (k / 4) as u8);
        let (sums, a, w) = ((TILE_BYTES as u16, rows), (k as u16, rows), (TILE_BYTES as u16, quads));
        let mut configuration =
            Configuration { palette: 1, start_row: 0, reserved: [0; 14], bytes: [0; 16], rows: [0; 16] };
        for (i, shape) in [sums, sums, sums, sums, a, a, w, w].into_iter().enumerate() {
            (configuration.bytes[i], configuration.rows[i]) = shape;
        }
        // SAFETY: the caller vouches for the instruction; it reads the 64 bytes of the configuration.
        unsafe {
            asm!(
                "ldtilecfg [{}]", in(reg) &raw const configuration,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, preserves_flags, readonly)
            );
        }
        Self { of_thread: PhantomData }
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: the tiles were configured on this thread, which has the instruction.
        unsafe {
            asm!(
                "tilerelease",
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, preserves_flags, nomem)
            );
        }
    }
}

/// Room for what tiles load and store, in whole cache lines; it holds nothing at first.
#[repr(align(64))]
pub(super) struct Lines<T, const N: usize>(MaybeUninit<[T; N]>);

impl<T, const N: usize> Lines<T, N> {
    pub fn new() -> Self {
        Self(MaybeUninit::uninit())
    }

    pub fn as_mut_ptr(&mut self) -> *mut T {
        self.0.as_mut_ptr().cast()
    }
}

/// AMX's set where it has to be emulated and can be: the CPU has all that it takes but AMX. Where it can not, says that
/// `test` is skipped with it.
#[cfg(test)]
pub(super) fn emulated(test: &str) -> Option<&'static super::quant::QuantKernels> {
    use std::io::Write;
    if super::dispatch::amx() {
        return None;
    }
    #[cfg(target_os = "linux")]
    if super::dispatch::avx512_vnni() {
        emulator::install();
        return Some(&super::quant::amx::AMX_INT8);
    }
    // Past the harness' capture: a skip is seen also in a green run.
    let _ = writeln!(std::io::stderr(), "1 skipped: {test} with amx-int8, which is neither granted nor emulated here");
    None
}

/// Rows of a product in tiles of one height. The last tile may begin before the one above it ends: it then has rows
/// whose sums are known already.
#[derive(Clone, Copy)]
pub(super) struct Split {
    rows: usize,
    pub tiles: usize,
    /// Rows of each tile.
    pub height: usize,
}

impl Split {
    /// As few tiles as hold `rows` rows, as low as these can be.
    pub fn new(rows: usize) -> Self {
        let tiles = rows.div_ceil(TILE_ROWS);
        Self { rows, tiles, height: rows.div_ceil(tiles.max(1)) }
    }

    /// The first row of a tile.
    pub fn first(self, tile: usize) -> usize {
        (tile * self.height).min(self.rows - self.height)
    }

    /// The rows that no earlier tile has.
    pub fn fresh(self, tile: usize) -> Range<usize> {
        tile * self.height..((tile + 1) * self.height).min(self.rows)
    }
}
