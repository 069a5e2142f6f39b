//! The kernels as PTX, generated from kernels/ by tools/build_ptx.sh and compiled by the driver for the device at hand.

use std::collections::HashMap;
use std::ffi::CStr;

const TEXT: &str = concat!(include_str!("../../kernels/ptx/kernels.ptx"), "\0");

/// The PTX, as the driver takes it.
pub(super) fn text() -> &'static CStr {
    CStr::from_bytes_until_nul(TEXT.as_bytes()).unwrap_or_default()
}

/// What a kernel takes, as its PTX declares it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Signature {
    /// Pointers, the first parameters.
    pub buffers: usize,
    /// Bytes of the last parameter, a struct; 0 where there is none.
    pub args: usize,
    /// Threads of a threadgroup at most.
    pub threads: u32,
}

/// The signatures of all kernels in a PTX text, by name.
pub(super) fn signatures(ptx: &str) -> HashMap<&str, Signature> {
    let mut found = HashMap::new();
    for entry in ptx.split(".visible .entry ").skip(1) {
        let Some((name, rest)) = entry.split_once('(') else { continue };
        let Some((params, rest)) = rest.split_once(')') else { continue };
        let mut signature = Signature::default();
        for param in params.split(',') {
            match param.rsplit_once('[').and_then(|(_, size)| size.trim_end().strip_suffix(']')) {
                Some(size) => signature.args = size.parse().unwrap_or(0),
                None => signature.buffers += usize::from(param.contains(".param .u64")),
            }
        }
        let head = rest.split('{').next().unwrap_or_default();
        let threads = head.split(".maxntid ").nth(1).and_then(|t| t.split(',').next());
        signature.threads = threads.and_then(|t| t.trim().parse().ok()).unwrap_or(0);
        found.insert(name.trim(), signature);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_are_read_from_the_text() {
        let ptx = "
.visible .entry one(
\t.param .u64 one_param_0,
\t.param .u64 one_param_1,
\t.param .align 4 .b8 one_param_2[32]
)
.maxntid 256, 1, 1
{
\tadd.s32 %r1, %r2, %r3;
}
.visible .entry two(
\t.param .u64 two_param_0
)
.maxntid 64, 1, 1                      // @two
{
}";
        let found = signatures(ptx);
        assert_eq!(found["one"], Signature { buffers: 2, args: 32, threads: 256 });
        assert_eq!(found["two"], Signature { buffers: 1, args: 0, threads: 64 });
        assert_eq!(found.len(), 2);
    }

    /// What a line does; nothing where it is a comment. A predicate stands before the operation that depends on it.
    fn operation(line: &str) -> &str {
        let code = line.split("//").next().unwrap_or_default();
        code.split_whitespace().find(|word| !word.starts_with('@')).unwrap_or_default().trim_end_matches(';')
    }

    #[test]
    fn operations_are_found_behind_predicates() {
        for (line, expected) in [
            ("\tadd.rn.f32 \t%f1, %f2, %f3;", "add.rn.f32"),
            ("\t@%p1 add.f32 %f1, %f2, %f3;", "add.f32"),
            ("\t@!%p12 bra \t$L__BB0_2;", "bra"),
            ("// @%p1 add.f32", ""),
            ("\tret;", "ret"),
        ] {
            assert_eq!(operation(line), expected, "{line}");
        }
    }

    /// Every rounding is stated: without `.rn` the driver's compiler may contract a product and a sum into one fma, and
    /// `.ftz`, `.approx` and `.full` are not IEEE 754.
    #[test]
    fn arithmetic_is_rounded_as_the_contract_says() {
        let mut operations = 0;
        for line in TEXT.lines() {
            let operation = operation(line);
            if !operation.ends_with(".f32") {
                continue;
            }
            let name = operation.split('.').next().unwrap_or_default();
            if ["add", "sub", "mul", "fma", "mad", "div", "rcp", "sqrt", "rsqrt", "ex2", "lg2", "sin", "cos", "tanh"]
                .contains(&name)
            {
                operations += 1;
                assert!(operation == format!("{name}.rn.f32") && name != "mad", "{line}");
            }
            assert!(!operation.contains(".ftz") && name != "min" && name != "max", "{line}");
        }
        assert!(operations > 1000, "{operations}");
    }

    #[test]
    fn every_kernel_declares_its_threads() {
        let found = signatures(TEXT);
        assert_eq!(found.len(), TEXT.matches(".entry ").count());
        for (name, signature) in found {
            assert!(signature.buffers > 0 && (1..=1024).contains(&signature.threads), "{name}: {signature:?}");
            assert!(signature.args % 4 == 0 && signature.args <= 256, "{name}: {signature:?}");
        }
    }
}
