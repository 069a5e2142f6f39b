//! The whole way of a GGUF file: nothing of it may panic.
#![no_main]

use std::path::PathBuf;
use std::sync::LazyLock;

use kin_infer::generate::{ChatTemplate, GenerationDefaults};
use kin_infer::modules::ModelFolder;
use kin_infer::tokenizer::TextTokenizer;
use kin_infer::weights::GgufFile;
use kin_infer::weights::gguf::Value;
use kin_infer::{BertConfig, BertModel, Sequence};
use libfuzzer_sys::fuzz_target;

static FILE: LazyLock<PathBuf> =
    LazyLock::new(|| std::env::temp_dir().join(format!("kin-infer-fuzz-{}.gguf", std::process::id())));

fuzz_target!(|bytes: &[u8]| {
    if std::fs::write(&*FILE, bytes).is_err() {
        return;
    }
    let Ok(file) = GgufFile::open(&FILE) else { return };
    for key in file.keys() {
        if let Some(value) = file.get(key) {
            walk(value);
        }
    }
    let _ = ModelFolder::read(&FILE);
    let _ = ChatTemplate::from_folder(&FILE);
    let _ = GenerationDefaults::from_folder(&FILE);
    if let Ok(tokenizer) = TextTokenizer::from_folder(&FILE) {
        let _ = tokenizer.encode("Some text, and 12 more: äöü", 32);
    }
    let Ok(config) = BertConfig::from_folder(&FILE) else { return };
    let _ = config.effective_max_seq_len();
    if let Ok(model) = BertModel::load(&FILE, config) {
        let sequence = Sequence { ids: vec![0, 1, 2], type_ids: Vec::new(), positions: Vec::new() };
        let _ = model.encode(&[sequence]);
    }
});

fn walk(value: Value) {
    if let Value::Array(array) = value {
        assert_eq!(array.iter().map(walk).count(), array.len());
    }
}
