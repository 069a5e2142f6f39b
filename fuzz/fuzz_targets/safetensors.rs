//! A safetensors file: what opens can be read.
#![no_main]

use std::path::PathBuf;
use std::sync::LazyLock;

use kin_infer::weights::Checkpoint;
use libfuzzer_sys::fuzz_target;

static FILE: LazyLock<PathBuf> =
    LazyLock::new(|| std::env::temp_dir().join(format!("kin-infer-fuzz-{}.safetensors", std::process::id())));

fuzz_target!(|bytes: &[u8]| {
    if std::fs::write(&*FILE, bytes).is_err() {
        return;
    }
    let Ok(checkpoint) = Checkpoint::open_file(&FILE) else { return };
    let mut total = 0;
    for name in checkpoint.names() {
        let Some(tensor) = checkpoint.get(name) else { panic!("`{name}` is listed and absent") };
        total += tensor.bytes().len() as u64;
        let Ok(dtype) = tensor.dtype() else { continue };
        assert_eq!(dtype.bytes_of(tensor.shape()), Some(tensor.bytes().len()));
        let values = tensor.to_f32().expect("a tensor of floats is read whole");
        if !dtype.is_block() {
            let found = tensor.first_non_finite().expect("a tensor of floats is scanned");
            assert_eq!(found, values.iter().position(|v| !v.is_finite()));
        }
        let rows = tensor.shape().first().copied().unwrap_or(0);
        let _ = tensor.rows(rows / 2..rows).and_then(|part| part.to_f32());
        let _ = tensor.rows_rearranged(rows.min(100), |row| rows - 1 - row);
    }
    assert_eq!(total, checkpoint.total_bytes());
});
