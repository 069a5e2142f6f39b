//! Writes launches to a file, for kernels/emulator/replay.cpp: where `KIN_INFER_RECORD_LAUNCHES` names a folder.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::sync::{LazyLock, Mutex};

use kin_infer::gpu::device::Launch;

/// Launches of one kernel that are kept: sanitizers are slow.
const MOST: usize = 24;

/// Bytes of a launch's buffers at most.
const LARGEST: usize = 1 << 18;

struct Recorder {
    file: File,
    counts: HashMap<&'static str, usize>,
}

static RECORDER: LazyLock<Option<Mutex<Recorder>>> = LazyLock::new(|| {
    let folder = PathBuf::from(std::env::var_os("KIN_INFER_RECORD_LAUNCHES")?);
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("kernels.cpp"), kin_infer_emulator::TRANSLATION_UNIT).unwrap();
    let file = File::create(folder.join(format!("{}.launches", std::process::id()))).unwrap();
    Some(Mutex::new(Recorder { file, counts: HashMap::new() }))
});

/// Records a launch about to happen; `buffers` is what each of its buffers holds.
pub fn record<'a>(l: &Launch, buffers: impl Fn() -> Vec<&'a [u8]>) {
    let Some(recorder) = &*RECORDER else { return };
    let mut recorder = recorder.lock().unwrap();
    let buffers = buffers();
    let count = recorder.counts.entry(l.kernel).or_default();
    if *count == MOST || buffers.iter().map(|b| b.len()).sum::<usize>() > LARGEST {
        return;
    }
    *count += 1;
    let word = |n: usize| (n as u32).to_ne_bytes();
    let mut bytes = word(l.kernel.len()).to_vec();
    bytes.extend(l.kernel.as_bytes());
    l.grid.iter().chain(&l.threads).for_each(|n| bytes.extend(n.to_ne_bytes()));
    bytes.extend(word(l.args.len()));
    bytes.extend(l.args);
    bytes.extend(word(buffers.len()));
    for buffer in buffers {
        bytes.extend(word(buffer.len()));
        bytes.extend(buffer);
    }
    recorder.file.write_all(&bytes).unwrap();
}
