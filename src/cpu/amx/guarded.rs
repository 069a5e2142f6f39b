//! Products over operands behind which no memory is readable: a tile that loads a row or a byte too many faults.

use std::ops::Range;

use super::super::gemm::BlockFinish;
use super::super::int8::kernel::{Int8Block, QUAD_BYTES};
use super::super::quant::kernel::{QBLOCK, QuantBlock, QuantKind};
use super::super::quant_tested;
use super::super::simd::PANEL;
use crate::gpu::Activation;

/// Values that end where a page begins that cannot be touched.
struct Guarded<T> {
    map: memmap2::MmapMut,
    values: Range<*mut T>,
}

impl<T: Copy> Guarded<T> {
    fn new(len: usize, value: impl Fn(usize) -> T) -> Self {
        const PAGE: usize = 4096;
        let bytes = (len * size_of::<T>()).next_multiple_of(PAGE);
        let mut map = memmap2::MmapMut::map_anon(bytes + PAGE).unwrap();
        // SAFETY: the last page is the map's own, and nothing refers to it.
        unsafe {
            let end = map.as_mut_ptr().add(bytes);
            assert_eq!(libc::mprotect(end.cast(), PAGE, libc::PROT_NONE), 0);
            let end = end.cast::<T>();
            let start = end.sub(len);
            (0..len).for_each(|i| start.add(i).write(value(i)));
            Self { map, values: start..end }
        }
    }

    fn at(&self, i: usize) -> *mut T {
        self.values.start.wrapping_add(i)
    }

    fn values(&self) -> Vec<T> {
        assert!(!self.map.is_empty());
        // SAFETY: they were all written, and no kernel runs.
        unsafe {
            std::slice::from_raw_parts(self.values.start, self.values.end.offset_from_unsigned(self.values.start))
        }
        .to_vec()
    }
}

fn mixed(i: usize) -> u8 {
    (i * 157 % 251 + i / 11) as u8
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

#[test]
fn int8_stays_inside_its_operands() {
    let sets = quant_tested("guarded operands of int8");
    for (rows, n, k) in [(4, 5, 8), (16, 64, 64), (17, 33, 72), (34, 112, 200), (50, 48, 128)] {
        let (panels, lda) = (usize::div_ceil(n, PANEL), usize::div_ceil(k, 64) * 64);
        let a = Guarded::new(rows * lda, mixed);
        let a_scales = Guarded::new(rows, |i| 0.01 + i as f32);
        let a_starts = Guarded::new(rows, |i| -(i as i32 * 7 % 255));
        let w = Guarded::new(panels * k / 4 * QUAD_BYTES, |i| mixed(i + 5));
        let w_scales = Guarded::new(panels * PANEL, |i| 0.5 + i as f32);
        let w_sums = Guarded::new(panels * PANEL, |i| i as i32 - 9);
        let outputs = sets.iter().filter(|set| matches!(set.name(), "amx-int8" | "avx512-vnni")).map(|set| {
            let c = Guarded::new(rows * n, |_| 7.0f32);
            let finish = BlockFinish { bias: None, activation: Activation::Relu, factor: None, residual: None };
            let block = Int8Block {
                rows,
                k,
                a: a.at(0),
                lda,
                a_scales: a_scales.at(0),
                a_starts: a_starts.at(0),
                w: w.at(0),
                w_scales: w_scales.at(0),
                w_sums: w_sums.at(0),
                panels: 0..panels,
                c: c.at(0),
                ldc: n,
                n,
                finish,
            };
            // SAFETY: the CPU has the set's instructions, or they are emulated; the operands have the shape given.
            unsafe { (set.int8.block)(&block) };
            bits(&c.values())
        });
        let outputs: Vec<_> = outputs.collect();
        assert!(outputs.windows(2).all(|pair| pair[0] == pair[1]), "{rows} rows, n {n}, k {k}");
    }
}

#[test]
fn blocks_stay_inside_their_operands() {
    let sets = quant_tested("guarded operands of blocks");
    for kind in [QuantKind::Q8, QuantKind::Q4] {
        for (rows, n, row_blocks) in [(6, 5, 1), (16, 32, 4), (17, 33, 3), (50, 40, 16)] {
            let panels = usize::div_ceil(n, PANEL);
            let x: Vec<f32> = (0..rows * row_blocks * QBLOCK).map(|i| f32::from(mixed(i)) - 120.0).collect();
            let w = Guarded::new(panels * row_blocks * kind.block_bytes(), mixed);
            let w_scales = Guarded::new(panels * row_blocks * PANEL, |i| 0x2c00 + i as u16 % 99);
            let outputs = sets.iter().filter(|set| matches!(set.name(), "amx-int8" | "avx512-vnni")).map(|set| {
                let blocks = rows * row_blocks;
                let (mut q, mut scales, mut starts) = (vec![0; x.len()], vec![0.0; blocks], vec![0; blocks]);
                // SAFETY: the CPU has the set's instructions; the slices hold the same blocks.
                unsafe { (set.quantise)(kind, &x, &mut q, &mut scales, &mut starts) };
                let a = Guarded::new(q.len(), |i| q[i]);
                let (a_scales, a_starts) = (Guarded::new(blocks, |i| scales[i]), Guarded::new(blocks, |i| starts[i]));
                let c = Guarded::new(rows * n, |_| 7.0f32);
                let block = QuantBlock {
                    rows,
                    blocks: row_blocks,
                    row_blocks,
                    a: a.at(0),
                    a_scales: a_scales.at(0),
                    a_starts: a_starts.at(0),
                    kind,
                    w: w.at(0),
                    w_scales: w_scales.at(0),
                    panels: 0..panels,
                    next: std::ptr::null(),
                    c: c.at(0),
                    ldc: n,
                    n,
                    first: true,
                    finish: None,
                };
                // SAFETY: as above, or they are emulated; the operands have the shape given.
                unsafe { (set.block)(&block) };
                bits(&c.values())
            });
            let outputs: Vec<_> = outputs.collect();
            assert!(outputs.windows(2).all(|pair| pair[0] == pair[1]), "{kind:?}, {rows} rows, {row_blocks} blocks");
        }
    }
}
