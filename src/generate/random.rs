//! [`Random`]: the random numbers that tokens are drawn with.

/// xoshiro256++ 1.0 (Blackman and Vigna, arXiv 1805.01407), its state filled by SplitMix64 (Steele, Lea and Flood, 2014).
/// Integers alone: a seed gives the same numbers on every machine.
///
/// ```text
/// seeding   x = seed; for each of s0 .. s3:
///               x = x + 9e3779b97f4a7c15
///               z = (x ^ (x >> 30)) * bf58476d1ce4e5b9
///               z = (z ^ (z >> 27)) * 94d049bb133111eb
///               s = z ^ (z >> 31)
/// a number  result = rotl(s0 + s3, 23) + s0
///           t = s1 << 17
///           s2 ^= s0; s3 ^= s1; s1 ^= s2; s0 ^= s3; s2 ^= t; s3 = rotl(s3, 45)
/// uniform   (number >> 11) * 2^-53
/// ```
///
/// Sums and products are those of 64-bit integers, without the carry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Random {
    state: [u64; 4],
}

impl Random {
    /// The generator of a seed.
    pub fn new(seed: u64) -> Self {
        let mut x = seed;
        let state = std::array::from_fn(|_| {
            x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        });
        Self { state }
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// A number from 0 (included) to 1 (excluded), a multiple of 2^-53.
    pub fn uniform(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }
}
