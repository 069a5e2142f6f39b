//! Products with blocks that are widened in registers, 32 k at a time: the bits of products with the f32 values that the
//! blocks stand for.
//!
//! A weight is `scale * integer + minimum`, as [`Part::values`](crate::weights::blocks::Part::values) has it, in one fused
//! operation, which rounds as that sum does: the product is exact, for a binary16 scale has 11 bits, its multiple at most
//! 7, and the integer as many that all are at most 24. Integers are stored too large by a centre c; the minimum is less by
//! c times the scale, exactly, where it is 0 otherwise. A weight of -0 becomes +0: a chain begins with +0, and no zero that
//! is added shows in it. An integer at bit b of a word is converted where it is, b bits too large, by a scale that is 2^-b
//! of the weight's.
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

/// Scales and minima of 32 k of a panel.
#[repr(align(64))]
pub(in crate::cpu) struct Group {
    /// The words of its integers: in the panel, or in `unpacked`.
    words: *const f32,
    unpacked: [u8; BYTES],
    /// Of each set of k.
    scales: [[f32; PANEL]; 2],
    minima: [[f32; PANEL]; 2],
}

impl Group {
    pub(in crate::cpu) const EMPTY: Self =
        Self { words: std::ptr::null(), unpacked: [0; BYTES], scales: [[0.0; PANEL]; 2], minima: [[0.0; PANEL]; 2] };
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
        let centre = V::splat(-f32::from(layout.centre));
        for lane in (0..PANEL).step_by(V::LANES) {
            let d = V::load_f16(halves.add(lane));
            let multiple = |i: usize| V::load_i8(multiples.add(i * PANEL + lane));
            for set in 0..PART / (WORDS * places) {
                let scale = if layout.multiples { d.mul(multiple(set % layout.scales)) } else { d };
                scale.store(out.scales[set][lane..].as_mut_ptr());
                centre.mul(scale).store(out.minima[set][lane..].as_mut_ptr());
            }
            if layout.minima {
                let m = V::load_f16(halves.add(PANEL + lane));
                let m = if layout.multiples { m.mul(multiple(layout.scales)) } else { m };
                out.minima.iter_mut().for_each(|minima| m.store(minima[lane..].as_mut_ptr()));
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
    undo: f32,
    last: bool,
}

/// Places in a word, in order: the first 32 / FIELD.
const fn places<const FIELD: usize>() -> [Place; 8] {
    let mut places = [Place { mask: 0, undo: 1.0, last: true }; 8];
    let mut i = 0;
    while i + 1 < 32 / FIELD {
        let bit = i * FIELD;
        places[i] = Place { mask: ((1 << FIELD) - 1) << bit, undo: 1.0 / (1u32 << bit) as f32, last: false };
        i += 1;
    }
    places
}

/// The weights of a place of the words at `words`; `scales` were multiplied by its `undo`.
#[inline(always)]
unsafe fn weights<V: Vector, const FIELD: usize>(words: *const f32, place: &Place, scales: V, minima: V) -> V {
    // SAFETY: forwarded.
    unsafe {
        let words = V::load(words);
        let integers = match (place.last, FIELD) {
            (true, 4) => words.top_bits::<28>(),
            (true, _) => words.top_bits::<24>(),
            _ => words.masked_bits(place.mask),
        };
        integers.mul_add(scales, minima)
    }
}

/// Whether the integers of a type's words are nibbles; else they are bytes.
pub(super) const fn is_nibbles(dtype: Dtype) -> bool {
    Layout::of(dtype).bits == 4
}

/// Widens the first `k` k of a panel into f32 values, `[k][16]`.
#[inline(always)]
pub(in crate::cpu) unsafe fn widen<V: Vector>(panel: &Panel, k: usize, out: *mut f32) {
    let mut group = Group::EMPTY;
    for at in (0..k).step_by(PART) {
        // SAFETY: forwarded.
        unsafe {
            unpack::<V>(panel, at / PART, &mut group);
            let out = out.add(at * PANEL);
            if is_nibbles(panel.dtype) { values::<V, 4>(&group, out) } else { values::<V, 8>(&group, out) }
        }
    }
}

/// The values of a group, `[k][16]`.
#[inline(always)]
unsafe fn values<V: Vector, const FIELD: usize>(group: &Group, out: *mut f32) {
    let places = const { places::<FIELD>() };
    let set_k = WORDS * 32 / FIELD;
    // SAFETY: forwarded; the group has WORDS words of each column for each set.
    unsafe {
        for set in 0..PART / set_k {
            for (i, place) in places.iter().enumerate().take(32 / FIELD) {
                for lane in (0..PANEL).step_by(V::LANES) {
                    let minima = V::load(group.minima[set].as_ptr().add(lane));
                    let scales = V::load(group.scales[set].as_ptr().add(lane)).mul(V::splat(place.undo));
                    for word in 0..WORDS {
                        let words = group.words.add((set * WORDS + word) * PANEL + lane);
                        let k = set * set_k + i * WORDS + word;
                        weights::<V, FIELD>(words, place, scales, minima).store(out.add(k * PANEL + lane));
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

/// One row by the tile's panels of `NV` registers, whose words have integers of `FIELD` bits: for a decoding step, which
/// reads each weight once.
///
/// Chains of one panel at a time are in registers: the loop over panels is no constant, so that compilers do not mix them,
/// which would take more registers than there are.
#[inline(always)]
pub(in crate::cpu) unsafe fn tile<V: Vector, const NV: usize, const FIELD: usize>(t: &Tile<Panel>, unpack: Unpack) {
    let set_k = WORDS * 32 / FIELD;
    let places = const { places::<FIELD>() };
    let mut groups = [const { Group::EMPTY }; ABREAST];
    // SAFETY: forwarded; a tile has at most ABREAST panels.
    unsafe {
        let mut chains = [[V::splat(0.0); NV]; ABREAST];
        for at in (0..t.k).step_by(PART) {
            for (p, group) in groups.iter_mut().enumerate().take(t.panels) {
                unpack(&*t.b.add(p), at / PART, group);
            }
            for set in 0..PART / set_k {
                for (i, place) in places.iter().enumerate().take(32 / FIELD) {
                    let x = t.a.add(at + set * set_k + i * WORDS);
                    for (group, chains) in groups.iter().zip(&mut chains).take(t.panels) {
                        *chains = step::<V, NV, FIELD>(group, set, place, x, *chains);
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
unsafe fn step<V: Vector, const NV: usize, const FIELD: usize>(
    group: &Group,
    set: usize,
    place: &Place,
    x: *const f32,
    mut chains: [V; NV],
) -> [V; NV] {
    // SAFETY: forwarded.
    unsafe {
        let (mut scales, mut minima) = ([V::splat(0.0); NV], [V::splat(0.0); NV]);
        for v in 0..NV {
            scales[v] = V::load(group.scales[set].as_ptr().add(v * V::LANES)).mul(V::splat(place.undo));
            minima[v] = V::load(group.minima[set].as_ptr().add(v * V::LANES));
        }
        for word in 0..WORDS {
            let x = V::splat(*x.add(word));
            for (v, chain) in chains.iter_mut().enumerate() {
                let words = group.words.add((set * WORDS + word) * PANEL + v * V::LANES);
                *chain = x.mul_add(weights::<V, FIELD>(words, place, scales[v], minima[v]), *chain);
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
