//! The kernels' sources: what Metal compiles, and what the committed PTX is made of, are the same.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

use kin_infer::gpu::kernels;
use sha2::{Digest, Sha256};

fn kernels_folder() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels")
}

/// Names of kernels/*.h, sorted by bytes.
fn headers() -> Vec<String> {
    let names = std::fs::read_dir(kernels_folder()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.ends_with(".h")).collect::<BTreeSet<_>>().into_iter().collect()
}

fn hex(hash: impl AsRef<[u8]>) -> String {
    hash.as_ref().iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

/// The sum of the sums that `sha256sum kernels/*.h` prints.
fn hash_of_sources() -> String {
    let mut lines = String::new();
    for name in headers() {
        let bytes = std::fs::read(kernels_folder().join(&name)).unwrap();
        writeln!(lines, "{}  kernels/{name}", hex(Sha256::digest(bytes))).unwrap();
    }
    hex(Sha256::digest(lines))
}

#[test]
fn ptx_is_made_of_these_sources() {
    let ptx = std::fs::read_to_string(kernels_folder().join("ptx/kernels.ptx")).unwrap();
    let head = |key: &str| ptx.lines().take(3).find_map(|l| l.strip_prefix(key)).unwrap_or_default();
    let expected = hash_of_sources();
    assert!(
        head("// sources: ") == expected,
        "kernels/ptx/kernels.ptx is made of other sources: run tools/build_ptx.sh (expected {expected}, found {})",
        head("// sources: ")
    );
    assert!(head("// compiler: clang 19.").contains("--cuda-gpu-arch=sm_70"), "{}", head("// compiler: "));
}

/// Metal compiles the files that CUDA's code is made of.
#[test]
fn every_file_is_read_by_every_device() {
    let read: BTreeSet<String> = kernels::FILES.iter().map(|(name, _)| name.to_string()).collect();
    assert_eq!(read.into_iter().collect::<Vec<_>>(), headers());
}

/// Metal binds arguments by the numbers in the sources, CUDA and the emulator by their order: both are the same.
#[test]
fn arguments_are_numbered_in_their_order() {
    let mut kernels = 0;
    for name in headers().iter().filter(|name| *name != "prelude.h") {
        let text = std::fs::read_to_string(kernels_folder().join(name)).unwrap();
        let mut next = 0;
        for part in text.split("ARG(").skip(1) {
            let number: u32 = part.split(')').next().unwrap().parse().unwrap();
            assert!(number == 0 || number == next, "kernels/{name}: ARG({number}) follows ARG({})", next - 1);
            kernels += u32::from(number == 0);
            next = number + 1;
        }
    }
    assert!(kernels >= 10, "{kernels}");
}
