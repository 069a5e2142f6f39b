//! The AMX instructions that kernels are made of, from their bytes: VEX.128 of the map 0F38, with W 0.

use super::tiles::Signs;

/// A tile instruction, with the addresses of its memory operand.
#[derive(Debug, PartialEq, Eq)]
pub enum Instruction {
    Configure(u64),
    Release,
    Zero { tile: usize },
    Load { tile: usize, from: u64, stride: u64 },
    Store { tile: usize, to: u64, stride: u64 },
    Multiply { signs: Signs, sums: usize, a: usize, b: usize },
}

/// Reads bytes one after another.
struct Reader<F: Fn(usize) -> u8> {
    byte: F,
    at: usize,
}

impl<F: Fn(usize) -> u8> Reader<F> {
    fn next(&mut self) -> u8 {
        self.at += 1;
        (self.byte)(self.at - 1)
    }

    fn displacement(&mut self, bytes: usize) -> u64 {
        match bytes {
            0 => 0,
            1 => self.next() as i8 as u64,
            _ => i32::from_le_bytes([self.next(), self.next(), self.next(), self.next()]) as u64,
        }
    }
}

/// The operand of a ModRM byte that is memory, and its parts where it has a SIB byte.
struct Memory {
    /// Base and displacement.
    start: u64,
    /// The index, scaled; none where the byte names none, or where there is no SIB byte.
    index: Option<u64>,
    sib: bool,
    /// Whether the address counts from the end of the instruction.
    from_end: bool,
}

/// What the three bytes of a VEX prefix say that these instructions use.
struct Vex {
    /// Extensions of ModRM.reg, SIB.index and the base, inverted in the bytes.
    r: bool,
    x: bool,
    b: bool,
    /// The operand beside ModRM's; 15 is none.
    register: u8,
    prefix: u8,
}

/// The instruction at hand and its length, `byte(i)` being its byte i and `registers` the general ones by their numbers;
/// `here` is its address. None where it is no tile instruction.
pub fn decode(byte: impl Fn(usize) -> u8, registers: &[u64; 16], here: u64) -> Option<(Instruction, usize)> {
    let mut reader = Reader { byte, at: 0 };
    let vex = vex(&mut reader)?;
    let (opcode, modrm) = (reader.next(), reader.next());
    let (mode, tile, other) = (modrm >> 6, usize::from(modrm >> 3 & 7), usize::from(modrm & 7));
    let alone = vex.register != 15;
    if mode == 3 {
        let instruction = match (opcode, vex.prefix) {
            (0x49, NONE) if modrm == 0xc0 && !alone => Instruction::Release,
            (0x49, F2) if other == 0 && vex.r && !alone => Instruction::Zero { tile },
            (0x5e, prefix) if vex.r && vex.b && vex.register >= 8 => {
                let (rows, columns) = (matches!(prefix, F2 | F3), matches!(prefix, F2 | P66));
                let b = usize::from(15 - vex.register);
                Instruction::Multiply { signs: Signs { rows, columns }, sums: tile, a: other, b }
            }
            _ => return None,
        };
        return Some((instruction, reader.at));
    }
    if alone {
        return None;
    }
    let mut memory = memory(&mut reader, &vex, mode, other, registers);
    if memory.from_end {
        memory.start = memory.start.wrapping_add(here).wrapping_add(reader.at as u64);
    }
    let (start, stride) = (memory.start, memory.index.unwrap_or(0));
    let instruction = match (opcode, vex.prefix) {
        (0x49, NONE) if tile == 0 && vex.r => Instruction::Configure(start.wrapping_add(stride)),
        (0x4b, F2) if memory.sib && vex.r => Instruction::Load { tile, from: start, stride },
        (0x4b, F3) if memory.sib && vex.r => Instruction::Store { tile, to: start, stride },
        _ => return None,
    };
    Some((instruction, reader.at))
}

/// Prefixes that VEX holds.
const NONE: u8 = 0;
const P66: u8 = 1;
const F3: u8 = 2;
const F2: u8 = 3;

fn vex<F: Fn(usize) -> u8>(reader: &mut Reader<F>) -> Option<Vex> {
    if reader.next() != 0xc4 {
        return None;
    }
    let (second, third) = (reader.next(), reader.next());
    // The map 0F38; W and the length 0.
    if second & 31 != 2 || third & 0x84 != 0 {
        return None;
    }
    let [r, x, b] = [7, 6, 5].map(|bit| second >> bit & 1 == 1);
    Some(Vex { r, x, b, register: third >> 3 & 15, prefix: third & 3 })
}

fn memory<F: Fn(usize) -> u8>(
    reader: &mut Reader<F>,
    vex: &Vex,
    mode: u8,
    other: usize,
    registers: &[u64; 16],
) -> Memory {
    let extended = |register: usize, not: bool| register + if not { 0 } else { 8 };
    let sib = other == 4;
    let (mut base, mut index) = (other, None);
    if sib {
        let byte = reader.next();
        base = usize::from(byte & 7);
        let number = extended(usize::from(byte >> 3 & 7), vex.x);
        index = (number != 4).then(|| registers[number] << (byte >> 6));
    }
    let absent = mode == 0 && base == 5;
    let displacement = reader.displacement(match mode {
        0 if absent => 4,
        0 => 0,
        1 => 1,
        _ => 4,
    });
    let start = if absent { 0 } else { registers[extended(base, vex.b)] };
    Memory { start: start.wrapping_add(displacement), index, sib, from_end: absent && !sib }
}
