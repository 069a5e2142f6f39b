//! `kernels/args.h`, what host and GPU kernels share, is what the host's structs say.

mod common;

use std::path::Path;

use kin_infer::gpu::kernels;

/// `KIN_INFER_UPDATE=1` writes the file.
#[test]
fn args_h_is_what_the_host_passes() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels/args.h");
    let expected = kernels::args_header();
    if common::update() {
        std::fs::write(&path, &expected).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap();
    assert!(found == expected, "KIN_INFER_UPDATE=1 cargo test --test gpu_kernels writes {}", path.display());
}
