//! The emulator against the manual, instruction by instruction, and the handler in processes of their own.

use std::arch::asm;

use super::decode::{Instruction, decode};
use super::tiles::{Signs, Tiles};
use crate::cpu::{amx, dispatch};

/// A configuration with tiles of `rows` and bytes of a row.
fn configuration(shapes: &[(u8, u16)]) -> [u8; 64] {
    let mut bytes = [0; 64];
    bytes[0] = 1;
    for (i, (rows, row_bytes)) in shapes.iter().enumerate() {
        bytes[48 + i] = *rows;
        bytes[16 + 2 * i..][..2].copy_from_slice(&row_bytes.to_le_bytes());
    }
    bytes
}

fn configured(shapes: &[(u8, u16)]) -> Tiles {
    let mut tiles = Tiles::new();
    tiles.configure(&configuration(shapes)).unwrap();
    tiles
}

const SIGNED: Signs = Signs { rows: true, columns: true };

/// The sums of `rows` by 16 columns over four k, plain.
fn plain(a: &[u8], b: &[u8], rows: usize, k: usize, signs: Signs) -> Vec<i32> {
    let wide = |byte: u8, sign: bool| if sign { i32::from(byte as i8) } else { i32::from(byte) };
    let sum = |r: usize, c: usize| {
        let term = |i: usize| wide(a[r * k + i], signs.rows) * wide(b[i / 4 * 64 + 4 * c + i % 4], signs.columns);
        (0..k).map(term).sum()
    };
    (0..rows).flat_map(|r| (0..16).map(move |c| (r, c))).map(|(r, c)| sum(r, c)).collect()
}

/// Bytes of every value, in no order.
fn bytes(count: usize, seed: usize) -> Vec<u8> {
    (0..count).map(|i| ((i + seed) * 157 % 251 + i / 7) as u8).collect()
}

fn sums(tiles: &mut Tiles, tile: usize, rows: usize) -> Vec<i32> {
    let mut out = vec![0i32; rows * 16];
    // SAFETY: the tile has so many rows of 64 bytes.
    unsafe { tiles.store(tile, out.as_mut_ptr().cast(), 64) }.unwrap();
    out
}

#[test]
fn products_are_those_of_the_definition_with_every_sign() {
    for (rows, k) in [(3, 12), (16, 64), (1, 4)] {
        let mut tiles = configured(&[(rows as u8, 64), (rows as u8, k as u16), (k as u8 / 4, 64)]);
        let (a, b) = (bytes(rows * k, 1), bytes(k * 16, 9));
        // SAFETY: both hold the tiles' rows.
        unsafe {
            tiles.load(1, a.as_ptr(), k as isize).unwrap();
            tiles.load(2, b.as_ptr(), 64).unwrap();
        }
        for signs in [(true, true), (true, false), (false, true), (false, false)] {
            let signs = Signs { rows: signs.0, columns: signs.1 };
            tiles.zero(0).unwrap();
            tiles.multiply(signs, 0, 1, 2).unwrap();
            tiles.multiply(signs, 0, 1, 2).unwrap();
            let twice: Vec<i32> = plain(&a, &b, rows, k, signs).iter().map(|s| 2 * s).collect();
            assert_eq!(sums(&mut tiles, 0, rows), twice, "{rows} rows, {k} k, {signs:?}");
        }
    }
}

#[test]
fn loads_and_stores_touch_a_tiles_rows_alone_and_leave_zeros_beyond() {
    let mut tiles = configured(&[(2, 8)]);
    let from: Vec<u8> = (1..=40).collect();
    let mut to = vec![99u8; 40];
    // SAFETY: two rows of eight bytes, backwards too, lie inside.
    unsafe {
        tiles.load(0, from[20..].as_ptr(), -12).unwrap();
        tiles.store(0, to.as_mut_ptr(), 16).unwrap();
    }
    let mut expected = vec![99u8; 40];
    expected[..8].copy_from_slice(&from[20..28]);
    expected[16..24].copy_from_slice(&from[8..16]);
    assert_eq!(to, expected);
}

#[test]
fn configurations_that_fault_are_refused() {
    let good = configuration(&[(16, 64), (1, 4)]);
    let refused = |at: usize, value: u8| {
        let mut bytes = good;
        bytes[at] = value;
        Tiles::new().configure(&bytes).unwrap_err()
    };
    assert_eq!(refused(0, 2), "ldtilecfg: an unknown palette");
    assert_eq!(refused(1, 1), "ldtilecfg: a start row");
    for at in [2, 15, 32, 47, 56, 63] {
        assert_eq!(refused(at, 1), "ldtilecfg: reserved bytes that are not zero");
    }
    assert_eq!(refused(48, 17), "ldtilecfg: a tile that is too large");
    assert_eq!(refused(17, 1), "ldtilecfg: a tile that is too large");
    assert_eq!(refused(50, 1), "ldtilecfg: a tile with rows or bytes alone");
    assert_eq!(refused(20, 4), "ldtilecfg: a tile with rows or bytes alone");
}

#[test]
fn misuse_is_refused() {
    let none = "a tile is used where none is configured";
    assert_eq!(Tiles::new().zero(0), Err(none));
    let mut released = configured(&[(1, 4)]);
    released.release();
    assert_eq!(released.zero(0), Err(none));
    let mut by_palette = configured(&[(1, 4)]);
    by_palette.configure(&[0; 64]).unwrap();
    assert_eq!(by_palette.zero(0), Err(none));

    let mut tiles = configured(&[(2, 64), (2, 8), (2, 64), (3, 8), (2, 16), (3, 64), (2, 6)]);
    assert_eq!(tiles.multiply(SIGNED, 0, 1, 2), Ok(()));
    assert_eq!(tiles.zero(7), Err("a tile without a shape is used"));
    for (sums, a, b) in [(0, 0, 2), (0, 1, 0), (0, 1, 1)] {
        assert_eq!(tiles.multiply(SIGNED, sums, a, b), Err("a product of one tile with itself"));
    }
    assert_eq!(tiles.multiply(SIGNED, 0, 6, 2), Err("a product of rows that are not whole quads"));
    // Other rows, other columns, another k.
    for (sums, a, b) in [(0, 3, 2), (4, 1, 2), (0, 1, 5)] {
        assert_eq!(tiles.multiply(SIGNED, sums, a, b), Err("a product of tiles whose shapes do not fit"));
    }
}

/// Bytes that an assembler made of the text.
#[test]
fn instructions_are_decoded() {
    let registers: [u64; 16] = std::array::from_fn(|i| 0x1000 * (i as u64 + 1));
    let [rax, rcx, _, rbx, rsp, _, _, rdi, r8, r9, .., r13, _, r15] = registers;
    let multiply = |signs: (bool, bool)| Instruction::Multiply {
        signs: Signs { rows: signs.0, columns: signs.1 },
        sums: 1,
        a: 4,
        b: 7,
    };
    let here = 0x50_0000;
    let cases: &[(&str, &[u8], Instruction)] = &[
        ("ldtilecfg [rdi]", &[0xc4, 0xe2, 0x78, 0x49, 0x07], Instruction::Configure(rdi)),
        ("ldtilecfg [rsp+64]", &[0xc4, 0xe2, 0x78, 0x49, 0x44, 0x24, 0x40], Instruction::Configure(rsp + 64)),
        (
            "ldtilecfg [rip-16]",
            &[0xc4, 0xe2, 0x78, 0x49, 0x05, 0xf0, 0xff, 0xff, 0xff],
            Instruction::Configure(here + 9 - 16),
        ),
        ("tilerelease", &[0xc4, 0xe2, 0x78, 0x49, 0xc0], Instruction::Release),
        ("tilezero tmm3", &[0xc4, 0xe2, 0x7b, 0x49, 0xd8], Instruction::Zero { tile: 3 }),
        (
            "tileloadd tmm4, [rax+r9]",
            &[0xc4, 0xa2, 0x7b, 0x4b, 0x24, 0x08],
            Instruction::Load { tile: 4, from: rax, stride: r9 },
        ),
        (
            "tileloadd tmm4, [r8+rcx+1024]",
            &[0xc4, 0xc2, 0x7b, 0x4b, 0xa4, 0x08, 0x00, 0x04, 0x00, 0x00],
            Instruction::Load { tile: 4, from: r8 + 1024, stride: rcx },
        ),
        (
            "tilestored [r13+r15], tmm0",
            &[0xc4, 0x82, 0x7a, 0x4b, 0x44, 0x3d, 0x00],
            Instruction::Store { tile: 0, to: r13, stride: r15 },
        ),
        (
            "tilestored [rsp+rbx+16], tmm7",
            &[0xc4, 0xe2, 0x7a, 0x4b, 0x7c, 0x1c, 0x10],
            Instruction::Store { tile: 7, to: rsp + 16, stride: rbx },
        ),
        ("tdpbssd tmm1, tmm4, tmm7", &[0xc4, 0xe2, 0x43, 0x5e, 0xcc], multiply((true, true))),
        ("tdpbsud tmm1, tmm4, tmm7", &[0xc4, 0xe2, 0x42, 0x5e, 0xcc], multiply((true, false))),
        ("tdpbusd tmm1, tmm4, tmm7", &[0xc4, 0xe2, 0x41, 0x5e, 0xcc], multiply((false, true))),
        ("tdpbuud tmm1, tmm4, tmm7", &[0xc4, 0xe2, 0x40, 0x5e, 0xcc], multiply((false, false))),
    ];
    for (text, bytes, instruction) in cases {
        let found = decode(|at| bytes[at], &registers, here).unwrap_or_else(|| panic!("{text}"));
        assert_eq!((&found.0, found.1), (instruction, bytes.len()), "{text}");
    }
    // ud2; vpdpbusd ymm1, ymm4, ymm7; sttilecfg [rdi].
    for bytes in [&[0x0f, 0x0b, 0, 0, 0][..], &[0xc4, 0xe2, 0x5d, 0x50, 0xcf], &[0xc4, 0xe2, 0x79, 0x49, 0x07]] {
        assert_eq!(decode(|at| bytes[at], &registers, here), None, "{bytes:x?}");
    }
}

/// Real instructions: emulated here, or the CPU's own where it has them, which holds the emulator to it.
#[test]
fn instructions_run() {
    if !dispatch::amx() {
        super::install();
    }
    let (rows, k) = (5, 64);
    let (a, b, mut out) = (bytes(rows * k, 3), bytes(k * 16, 4), vec![-1i32; rows * 16]);
    // SAFETY: AMX is granted or emulated; all three hold the tiles' rows.
    unsafe {
        let _tiles = amx::Tiles::configure(rows, k);
        asm!(
            "tilezero tmm0", "tileloadd tmm5, [{a} + {row}*1]", "tileloadd tmm6, [{b} + {row}*1]",
            "tdpbusd tmm0, tmm5, tmm6", "tilestored [{out} + {row}*1], tmm0",
            a = in(reg) a.as_ptr(), b = in(reg) b.as_ptr(), out = in(reg) out.as_mut_ptr(), row = in(reg) 64usize,
            out("tmm0") _, out("tmm5") _, out("tmm6") _,
            options(nostack, preserves_flags)
        );
    }
    assert_eq!(out, plain(&a, &b, rows, k, Signs { rows: false, columns: true }));
}

/// The signal that ends a process which does this alone, or less its exit status.
fn end_of(run: impl Fn()) -> i32 {
    let mut status = 0;
    // SAFETY: the child calls nothing that takes locks: threads that held them do not exist in it.
    unsafe {
        let child = libc::fork();
        assert!(child >= 0, "fork");
        if child == 0 {
            // Its message is none of this run's.
            libc::close(libc::STDERR_FILENO);
            run();
            libc::_exit(0);
        }
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
    }
    if libc::WIFSIGNALED(status) { libc::WTERMSIG(status) } else { -libc::WEXITSTATUS(status) }
}

#[test]
fn misuse_and_other_illegal_instructions_end_a_process() {
    if !dispatch::amx() {
        super::install();
    }
    // SAFETY: it is meant to fault, in a process of its own; if it does not, a register nobody uses is zeros.
    let unconfigured = || unsafe { asm!("tilezero tmm0", out("tmm0") _) };
    let signal = if dispatch::amx() { libc::SIGILL } else { libc::SIGABRT };
    assert_eq!(end_of(unconfigured), signal);
    // SAFETY: as above.
    assert_eq!(end_of(|| unsafe { asm!("ud2") }), libc::SIGILL);
    assert_eq!(end_of(|| ()), 0);
}
