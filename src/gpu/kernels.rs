//! The kernels' source text, written once for Metal Shading Language, CUDA C++ and the tests' emulator.
//!
//! A Metal device compiles [`source`] at run time; a CUDA device loads code generated from it.

/// The files of `kernels/`, in the order in which they are read.
pub const FILES: &[(&str, &str)] = &[
    ("prelude.h", include_str!("../../kernels/prelude.h")),
    ("args.h", include_str!("../../kernels/args.h")),
    ("math.h", include_str!("../../kernels/math.h")),
    ("elementwise.h", include_str!("../../kernels/elementwise.h")),
    ("rows.h", include_str!("../../kernels/rows.h")),
    ("tokens.h", include_str!("../../kernels/tokens.h")),
    ("matmul.h", include_str!("../../kernels/matmul.h")),
    ("quantised.h", include_str!("../../kernels/quantised.h")),
    ("attention.h", include_str!("../../kernels/attention.h")),
    ("measure.h", include_str!("../../kernels/measure.h")),
];

/// The text of `args.h`, which is written from the structs that the host passes.
pub use super::backend::args::header as args_header;

/// All of it as one text, without the `#include` lines of the project's own files.
pub fn source() -> String {
    let mut text = String::new();
    for (_, file) in FILES {
        for line in file.lines().filter(|l| !l.starts_with("#include \"") && !l.starts_with("#pragma once")) {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}
