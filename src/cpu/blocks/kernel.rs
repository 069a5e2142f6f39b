//! Products with blocks that are widened in registers, 32 k at a time: the bits of products with the f32 values that the
//! blocks stand for.
//!
//! A weight is `scale * integer`, with the centre taken off the integer as it is stored, or `scale * integer + minimum`, as
//! [`Part::values`](crate::weights::blocks::Part::values) has it, zeros with their signs. That sum is one fused operation,
//! which rounds as it does: the product is exact, for a binary16 scale has 11 bits, its multiple at most 7, and the integer
//! as many that all are at most 24. An integer at bit b of a word is converted where it is, 2^b times too large, and
//! multiplied by a scale that is 2^-b of the weight's.
//!
//! # Safety
//! Every function here asks the same of its caller: the CPU has V's instruction set, and pointers are valid for the shape
//! given.

use super::super::gemm::{self, Block, Tile};
use super::super::simd::{PANEL, Vector};
use super::layout::{BYTES, Layout, WORDS, high_bits};
use crate::weights::Dtype;
use crate::weights::blocks::PART;

/// A panel's blocks, from the first k of a chain on.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Panel {
    pub dtype: Dtype,
    pub data: *const u8,
}

/// How far ahead, in bytes, blocks are asked for: a group of them is some hundred cycles of work.
const AHEAD: usize = 2048;

/// Scales of 32 k of a panel, and minima where there are any.
#[repr(align(64))]
pub(in crate::cpu) struct Group {
    /// The words of its integers: in the panel, or in `unpacked`.
    words: *const f32,
    unpacked: [u8; BYTES],
    /// Of each set of k.
    scales: [[f32; PANEL]; 2],
    minima: [f32; PANEL],
}

impl Group {
    pub(in crate::cpu) const EMPTY: Self =
        Self { words: std::ptr::null(), unpacked: [0; BYTES], scales: [[0.0; PANEL]; 2], minima: [0.0; PANEL] };
}

/// Bytes of a cache line.
const LINE: usize = 64;

/// Takes the group of k / 32 of a panel apart.
#[inline(always)]
pub(in crate::cpu) unsafe fn unpack<V: Vector>(panel: &Panel, group: usize, out: &mut Group) {
    // SAFETY: forwarded. The layouts are constants of each call.
    unsafe {
        match panel.dtype {
            Dtype::Q4_0 => take_apart::<V>(const { Layout::of(Dtype::Q4_0) }, panel.data, group, out),
            Dtype::Q4_1 => take_apart::<V>(const { Layout::of(Dtype::Q4_1) }, panel.data, group, out),
            Dtype::Q5_0 => take_apart::<V>(const { Layout::of(Dtype::Q5_0) }, panel.data, group, out),
            Dtype::Q5_1 => take_apart::<V>(const { Layout::of(Dtype::Q5_1) }, panel.data, group, out),
            Dtype::Q4K => take_apart::<V>(const { Layout::of(Dtype::Q4K) }, panel.data, group, out),
            Dtype::Q5K => take_apart::<V>(const { Layout::of(Dtype::Q5K) }, panel.data, group, out),
            Dtype::Q6K => take_apart::<V>(const { Layout::of(Dtype::Q6K) }, panel.data, group, out),
            _ => take_apart::<V>(const { Layout::of(Dtype::Q8_0) }, panel.data, group, out),
        }
    }
}

#[inline(always)]
unsafe fn take_apart<V: Vector>(layout: Layout, panel: *const u8, group: usize, out: &mut Group) {
    let (head, at) = layout.place(group);
    let places = 32 / layout.field();
    // SAFETY: forwarded.
    unsafe {
        let from = panel.add(at);
        for line in (0..layout.group()).step_by(LINE) {
            super::super::prefetch_l1(from.wrapping_add(AHEAD + line));
        }
        out.words = from.cast();
        if matches!(layout.bits, 5 | 6) {
            bytes(layout.bits, std::slice::from_raw_parts(from, layout.integers()), &mut out.unpacked);
            out.words = out.unpacked.as_ptr().cast();
        }
        let (halves, multiples) = (panel.add(head).cast::<u16>(), from.add(layout.integers()).cast::<i8>());
        for lane in (0..PANEL).step_by(V::LANES) {
            let d = V::load_f16(halves.add(lane));
            let multiple = |i: usize| V::load_i8(multiples.add(i * PANEL + lane));
            for set in 0..PART / (WORDS * places) {
                let scale = if layout.multiples { d.mul(multiple(set % layout.scales)) } else { d };
                scale.store(out.scales[set][lane..].as_mut_ptr());
            }
            if layout.minima {
                let m = V::load_f16(halves.add(PANEL + lane));
                let m = if layout.multiples { m.neg().mul(multiple(layout.scales)) } else { m };
                m.store(out.minima[lane..].as_mut_ptr());
            }
        }
    }
}

/// Integers of 5 or 6 bits as bytes. Loops over bytes, which compilers turn into operations on registers.
#[inline(always)]
fn bytes(bits: usize, packed: &[u8], out: &mut [u8; BYTES]) {
    let (low, high) = packed.split_at(BYTES / 2);
    let (first, second) = out.split_at_mut(BYTES / 2);
    let (step, rows) = high_bits(bits);
    let (mask, shared) = ((1u8 << step) - 1, BYTES / 2 / rows);
    for (j, low) in low.chunks_exact(rows).enumerate() {
        let outs = first[j * rows..][..rows].iter_mut().zip(second[j * rows..][..rows].iter_mut());
        for (((first, second), low), high) in outs.zip(low).zip(&high[..rows]) {
            let above = |j: usize| (high >> (step * j) & mask) << 4;
            *first = low & 15 | above(j);
            *second = low >> 4 | above(j + shared);
        }
    }
}

/// A place in words of integers of `FIELD` bits: which bits it has, and what undoes that an integer is converted there. The
/// last place is shifted down instead, for its highest bit would be a sign.
#[derive(Clone, Copy)]
struct Place {
    mask: u32,
    /// How many times too large integers are there, and one over it.
    times: f32,
    undo: f32,
    last: bool,
}

/// Places in a word, in order: the first 32 / FIELD.
const fn places<const FIELD: usize>() -> [Place; 8] {
    let mut places = [Place { mask: 0, times: 1.0, undo: 1.0, last: true }; 8];
    let mut i = 0;
    while i + 1 < 32 / FIELD {
        let bit = i * FIELD;
        let times = (1u32 << bit) as f32;
        places[i] = Place { mask: ((1 << FIELD) - 1) << bit, times, undo: 1.0 / times, last: false };
        i += 1;
    }
    places
}

/// The weights of a place of words: integers times `scales`, which were multiplied by its `undo`. `other` is what is added,
/// the minima, where there are any; else it is what is taken off the integers before, their centre as many times too large.
#[inline(always)]
unsafe fn weights<V: Vector, const FIELD: usize, const MINIMA: bool>(
    words: *const f32,
    place: &Place,
    scales: V,
    other: V,
) -> V {
    // SAFETY: forwarded.
    unsafe {
        let words = V::load(words);
        let integers = match (place.last, FIELD) {
            (true, 4) => words.top_bits::<28>(),
            (true, _) => words.top_bits::<24>(),
            _ => words.masked_bits(place.mask),
        };
        if MINIMA { integers.mul_add(scales, other) } else { integers.sub(other).mul(scales) }
    }
}

/// What [`weights`] has beside the integers, for a register of columns from `lane` on.
#[inline(always)]
unsafe fn beside<V: Vector, const MINIMA: bool>(
    (group, set): (&Group, usize),
    lane: usize,
    place: &Place,
    centre: f32,
) -> (V, V) {
    // SAFETY: forwarded; the group has a register of columns from `lane` on.
    unsafe {
        let scales = V::load(group.scales[set].as_ptr().add(lane)).mul(V::splat(place.undo));
        let other = if MINIMA { V::load(group.minima.as_ptr().add(lane)) } else { V::splat(centre * place.times) };
        (scales, other)
    }
}

/// Which kernel a type takes: whether its words hold nibbles, else bytes, and whether it has minima.
pub(super) const fn kind(dtype: Dtype) -> (bool, bool) {
    let layout = Layout::of(dtype);
    (layout.bits == 4, layout.minima)
}

/// Widens the first `k` k of a panel into f32 values, `[k][16]`.
#[inline(always)]
pub(in crate::cpu) unsafe fn widen<V: Vector>(panel: &Panel, k: usize, out: *mut f32) {
    let mut group = Group::EMPTY;
    let centre = f32::from(Layout::of(panel.dtype).centre);
    for at in (0..k).step_by(PART) {
        // SAFETY: forwarded.
        unsafe {
            unpack::<V>(panel, at / PART, &mut group);
            let out = out.add(at * PANEL);
            match kind(panel.dtype) {
                (true, true) => values::<V, 4, true>(&group, centre, out),
                (true, false) => values::<V, 4, false>(&group, centre, out),
                (false, true) => values::<V, 8, true>(&group, centre, out),
                (false, false) => values::<V, 8, false>(&group, centre, out),
            }
        }
    }
}

/// The values of a group, `[k][16]`.
#[inline(always)]
unsafe fn values<V: Vector, const FIELD: usize, const MINIMA: bool>(group: &Group, centre: f32, out: *mut f32) {
    let places = const { places::<FIELD>() };
    let set_k = WORDS * 32 / FIELD;
    // SAFETY: forwarded; the group has WORDS words of each column for each set.
    unsafe {
        for set in 0..PART / set_k {
            for (i, place) in places.iter().enumerate().take(32 / FIELD) {
                for lane in (0..PANEL).step_by(V::LANES) {
                    let (scales, other) = beside::<V, MINIMA>((group, set), lane, place, centre);
                    for word in 0..WORDS {
                        let words = group.words.add((set * WORDS + word) * PANEL + lane);
                        let k = set * set_k + i * WORDS + word;
                        let w = weights::<V, FIELD, MINIMA>(words, place, scales, other);
                        w.store(out.add(k * PANEL + lane));
                    }
                }
            }
        }
    }
}

/// Takes groups apart, in a function compiled with an instruction set.
pub(in crate::cpu) type Unpack = unsafe fn(&Panel, usize, &mut Group);

/// Most panels of a tile: as many as give chains enough to hide the latency of an FMA.
const ABREAST: usize = 8;

/// One row by the tile's panels of `NV` registers, whose words have integers of `FIELD` bits, and minima or not: for a
/// decoding step, which reads each weight once.
///
/// Chains of one panel at a time are in registers: the loop over panels is no constant, so that compilers do not mix them,
/// which would take more registers than there are.
#[inline(always)]
pub(in crate::cpu) unsafe fn tile<V: Vector, const NV: usize, const FIELD: usize, const MINIMA: bool>(
    t: &Tile<Panel>,
    unpack: Unpack,
) {
    let set_k = WORDS * 32 / FIELD;
    let places = const { places::<FIELD>() };
    let mut groups = [const { Group::EMPTY }; ABREAST];
    let mut centres = [0.0; ABREAST];
    // SAFETY: forwarded; a tile has at most ABREAST panels.
    unsafe {
        for (p, centre) in centres.iter_mut().enumerate().take(t.panels) {
            *centre = f32::from(Layout::of((*t.b.add(p)).dtype).centre);
        }
        let mut chains = [[V::splat(0.0); NV]; ABREAST];
        for at in (0..t.k).step_by(PART) {
            for (p, group) in groups.iter_mut().enumerate().take(t.panels) {
                unpack(&*t.b.add(p), at / PART, group);
            }
            for set in 0..PART / set_k {
                for (i, place) in places.iter().enumerate().take(32 / FIELD) {
                    let x = t.a.add(at + set * set_k + i * WORDS);
                    for ((group, centre), chains) in groups.iter().zip(&centres).zip(&mut chains).take(t.panels) {
                        *chains = step::<V, NV, FIELD, MINIMA>((group, set), place, *centre, x, *chains);
                    }
                }
            }
        }
        for (p, chains) in chains.iter().enumerate().take(t.panels) {
            let column = p * PANEL;
            let of_panel = Tile { c: t.c.add(column), cols: (t.cols - column).min(PANEL), panels: 1, ..*t };
            gemm::write_tile(&of_panel, &[*chains]);
        }
    }
}

/// Adds, to a panel's chains, the products of a place of its words with their values of the row at `x`.
#[inline(always)]
unsafe fn step<V: Vector, const NV: usize, const FIELD: usize, const MINIMA: bool>(
    (group, set): (&Group, usize),
    place: &Place,
    centre: f32,
    x: *const f32,
    mut chains: [V; NV],
) -> [V; NV] {
    // SAFETY: forwarded.
    unsafe {
        let mut operands = [(V::splat(0.0), V::splat(0.0)); NV];
        for (v, operands) in operands.iter_mut().enumerate() {
            *operands = beside::<V, MINIMA>((group, set), v * V::LANES, place, centre);
        }
        for word in 0..WORDS {
            let x = V::splat(*x.add(word));
            for (v, chain) in chains.iter_mut().enumerate() {
                let words = group.words.add((set * WORDS + word) * PANEL + v * V::LANES);
                let (scales, other) = operands[v];
                *chain = x.mul_add(weights::<V, FIELD, MINIMA>(words, place, scales, other), *chain);
            }
        }
        chains
    }
}

/// Runs `tile` over a block of one row.
#[inline(always)]
pub(in crate::cpu) unsafe fn row<V: Vector>(b: &Block<Panel>, tile: impl Fn(&Tile<Panel>)) {
    // SAFETY: forwarded.
    unsafe { gemm::block::<V, Panel>(b, |_| 1, ABREAST, ABREAST, tile) }
}
