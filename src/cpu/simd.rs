//! The few vector operations every instruction set offers, and their one-lane instance.
//!
//! Each method is one correctly rounded IEEE 754 operation, an exact bit operation or a move, lane by lane, so an
//! algorithm written over [`Vector`] gives the same bits on every instance.

/// Column width of a packed weight panel: one AVX-512 register, two AVX2 registers, four NEON registers.
pub(crate) const PANEL: usize = 16;

/// Partial sums a row reduction keeps, whatever the register width (see docs/numerics.md, "Row reductions").
pub(crate) const VIRTUAL_LANES: usize = 32;

/// A register of `LANES` f32 values.
///
/// # Safety
/// Every method requires a CPU that has the instance's instruction set; pointers must be valid for the lanes touched.
pub(crate) trait Vector: Copy {
    /// Values in a register; a power of two, at most [`PANEL`].
    const LANES: usize;
    unsafe fn load(p: *const f32) -> Self;
    unsafe fn store(self, p: *mut f32);
    /// The first `n < LANES` values; the other lanes are +0.
    #[inline(always)]
    unsafe fn load_part(p: *const f32, n: usize) -> Self {
        let mut padded = [0f32; PANEL];
        // SAFETY: the caller vouches for `n` values at `p`; `padded` holds a whole register.
        unsafe {
            std::ptr::copy_nonoverlapping(p, padded.as_mut_ptr(), n);
            Self::load(padded.as_ptr())
        }
    }
    /// Writes the first `n < LANES` values.
    #[inline(always)]
    unsafe fn store_part(self, p: *mut f32, n: usize) {
        let mut padded = [0f32; PANEL];
        // SAFETY: the caller vouches for `n` values at `p`; `padded` holds a whole register.
        unsafe {
            self.store(padded.as_mut_ptr());
            std::ptr::copy_nonoverlapping(padded.as_ptr(), p, n);
        }
    }
    /// The first `n <= LANES` lanes; the other lanes are `rest`'s.
    #[inline(always)]
    unsafe fn first(self, n: usize, rest: Self) -> Self {
        let (mut lanes, mut own) = ([0f32; PANEL], [0f32; PANEL]);
        // SAFETY: the arrays hold a whole register.
        unsafe {
            rest.store(lanes.as_mut_ptr());
            self.store(own.as_mut_ptr());
            lanes[..n].copy_from_slice(&own[..n]);
            Self::load(lanes.as_ptr())
        }
    }
    /// The lanes of both in turn, self's first: of the lower halves, and of the upper halves.
    unsafe fn zip(self, o: Self) -> (Self, Self);
    /// Widens a register of binary16 bits, exactly.
    unsafe fn load_f16(p: *const u16) -> Self;
    /// Widens a register of bfloat16 bits, exactly.
    unsafe fn load_bf16(p: *const u16) -> Self;
    /// Signed bytes as the numbers they are.
    unsafe fn load_i8(p: *const i8) -> Self;
    /// The bits under a mask of at most 24 neighbouring ones below the sign, as the integers that they are.
    unsafe fn masked_bits(self, mask: u32) -> Self;
    /// The bits from bit `SHIFT` up, 8 to 31, as the integers that they are.
    unsafe fn top_bits<const SHIFT: i32>(self) -> Self;
    unsafe fn splat(x: f32) -> Self;
    unsafe fn add(self, o: Self) -> Self;
    unsafe fn sub(self, o: Self) -> Self;
    unsafe fn mul(self, o: Self) -> Self;
    unsafe fn div(self, o: Self) -> Self;
    /// `self * b + c`, rounded once.
    unsafe fn mul_add(self, b: Self, c: Self) -> Self;
    /// `x < y ? a : b`, lane by lane; `b` where either is NaN. Hardware min and max differ on NaN between ISAs.
    unsafe fn select_lt(x: Self, y: Self, a: Self, b: Self) -> Self;
    /// `x < y ? x : y`; `y` where either is NaN or both are zeros.
    #[inline(always)]
    unsafe fn lesser(x: Self, y: Self) -> Self {
        // SAFETY: forwarded.
        unsafe { Self::select_lt(x, y, x, y) }
    }
    /// `y < x ? x : y`; `y` where either is NaN or both are zeros.
    #[inline(always)]
    unsafe fn greater(x: Self, y: Self) -> Self {
        // SAFETY: forwarded.
        unsafe { Self::select_lt(y, x, x, y) }
    }
    unsafe fn abs(self) -> Self;
    /// The other sign, of zeros and NaN too.
    unsafe fn neg(self) -> Self;
    /// `self * 2^n`, rounded once, for |self| in 0.5..=2 and an integer-valued n in -200..=200; any value for other n.
    #[inline(always)]
    unsafe fn scale_pow2(self, n: Self) -> Self {
        // SAFETY: forwarded.
        unsafe {
            // In two factors, each a normal number, so that only the last multiplication rounds.
            let half = n.mul(Self::splat(0.5)).add(Self::splat(ROUND_MAGIC)).sub(Self::splat(ROUND_MAGIC));
            self.mul(half.pow2()).mul(n.sub(half).pow2())
        }
    }
    /// `self * 2^n`, rounded once, for |self| in 0.5..=2 and an integer-valued n for which n + DOWN is in -126..=127; `sum`
    /// is [`exponent_magic`]`(DOWN) + n`. Any value for other n.
    #[inline(always)]
    unsafe fn scale_down<const DOWN: u8>(self, n: Self, sum: Self) -> Self {
        let _ = n;
        // SAFETY: forwarded.
        unsafe {
            let scaled = self.mul(sum.exponent());
            if DOWN == 0 { scaled } else { scaled.mul(Self::splat(1.0 / (1u128 << DOWN) as f32)) }
        }
    }
    /// 2^k for an integer-valued k in -126..=127.
    #[inline(always)]
    unsafe fn pow2(self) -> Self {
        // SAFETY: forwarded.
        unsafe { self.add(Self::splat(exponent_magic(0))).exponent() }
    }
    /// 2^(k - 127) for a sum of [`ROUND_MAGIC`] and an integer k in 1..=254, whose bits move to the exponent's place.
    unsafe fn exponent(self) -> Self;
    /// Sum of the lanes by halving: lane i takes lane i + LANES/2, until one is left.
    #[inline(always)]
    unsafe fn fold(self) -> f32 {
        let mut lanes = [0f32; PANEL];
        // SAFETY: `lanes` holds a whole register.
        unsafe { self.store(lanes.as_mut_ptr()) };
        let mut width = Self::LANES / 2;
        while width > 0 {
            for i in 0..width {
                lanes[i] += lanes[i + width];
            }
            width /= 2;
        }
        lanes[0]
    }
    /// The greatest lane, where none is NaN; either zero where it is 0.
    #[inline(always)]
    unsafe fn greatest(self) -> f32 {
        let mut lanes = [f32::NEG_INFINITY; PANEL];
        // SAFETY: `lanes` holds a whole register.
        unsafe { self.store(lanes.as_mut_ptr()) };
        lanes.iter().fold(f32::NEG_INFINITY, |top, lane| if top < *lane { *lane } else { top })
    }
}

/// Transposes the first LANES registers, each a row of as many columns.
///
/// Zipping row i with row i + LANES/2 into rows 2i and 2i + 1 rotates the bits of (row, column) by one.
///
/// # Safety
/// As [`Vector`].
#[inline(always)]
pub(crate) unsafe fn transpose<V: Vector>(rows: &mut [V; PANEL]) {
    for _ in 0..V::LANES.ilog2() {
        let from = *rows;
        for i in 0..V::LANES / 2 {
            // SAFETY: forwarded.
            (rows[2 * i], rows[2 * i + 1]) = unsafe { from[i].zip(from[i + V::LANES / 2]) };
        }
    }
}

/// Folds the lanes of each of `$rows`, LANES of them, by halving with `$with`: lane r of the result is what is left of
/// row r. Zipping two rows brings the lanes that meet in either of them under one another.
macro_rules! fold_rows {
    ($v:ty, $rows:expr, $with:path) => {{
        let mut width = <$v>::LANES / 2;
        while width > 0 {
            for r in 0..width {
                let (low, high) = $rows[r].zip($rows[r + width]);
                $rows[r] = $with(low, high);
            }
            width /= 2;
        }
        $rows[0]
    }};
}
pub(crate) use fold_rows;

/// 1.5 * 2^23: adding it rounds to an integer, ties to even, and leaves that in the low bits of the mantissa: no
/// conversion to integers, whose rules for NaN and range differ between ISAs, takes part in any kernel.
pub(crate) const ROUND_MAGIC: f32 = 12_582_912.0;

/// What added to an integer k leaves k + 127 + `down` in the low bits: for [`Vector::exponent`], which makes 2^(k + down).
pub(crate) const fn exponent_magic(down: u8) -> f32 {
    ROUND_MAGIC + 127.0 + down as f32
}

/// The methods of a [`Vector`] instance, each one expression of intrinsics: `fn name(arguments) -> type = expression;`.
macro_rules! vector_operations {
    ($(fn $name:ident($($arguments:tt)*) $(-> $type:ty)? = $body:expr;)*) => {$(
        #[inline(always)]
        #[allow(unused_unsafe)] // the one-lane instance computes with safe operators
        unsafe fn $name($($arguments)*) $(-> $type)? {
            // SAFETY: the trait's contract: the CPU has the instructions, pointers are valid for the lanes.
            unsafe { $body }
        }
    )*};
}
pub(super) use vector_operations;

impl Vector for f32 {
    const LANES: usize = 1;
    unsafe fn top_bits<const SHIFT: i32>(self) -> Self {
        (self.to_bits() >> SHIFT) as f32
    }
    vector_operations! {
        fn load(p: *const f32) -> Self = *p;
        fn store(self, p: *mut f32) = *p = self;
        fn load_f16(p: *const u16) -> Self = half::f16::from_bits(*p).to_f32();
        fn load_bf16(p: *const u16) -> Self = f32::from_bits(u32::from(*p) << 16);
        fn load_i8(p: *const i8) -> Self = f32::from(*p);
        fn masked_bits(self, mask: u32) -> Self = (self.to_bits() & mask) as f32;
        fn splat(x: f32) -> Self = x;
        fn add(self, o: Self) -> Self = self + o;
        fn sub(self, o: Self) -> Self = self - o;
        fn mul(self, o: Self) -> Self = self * o;
        fn div(self, o: Self) -> Self = self / o;
        fn mul_add(self, b: Self, c: Self) -> Self = f32::mul_add(self, b, c);
        fn select_lt(x: Self, y: Self, a: Self, b: Self) -> Self = if x < y { a } else { b };
        fn abs(self) -> Self = f32::abs(self);
        fn neg(self) -> Self = -self;
        fn exponent(self) -> Self = f32::from_bits(self.to_bits() << 23);
        fn first(self, n: usize, rest: Self) -> Self = if n == 0 { rest } else { self };
        fn zip(self, o: Self) -> (Self, Self) = (self, o);
    }
}
