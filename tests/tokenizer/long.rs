//! Long texts: time grows with the length, nothing is lost.

use std::time::{Duration, Instant};

use kin_infer::tokenizer::TextTokenizer;

use super::families::{copy, folders, read};

#[test]
fn every_family_takes_linear_time() {
    let gives_back = ["tokenizer-roberta", "tokenizer-gpt2", "tokenizer-llama3", "tokenizer-deberta"];
    for path in folders() {
        let name = path.file_name().unwrap().to_str().unwrap();
        let config = read(&path.join("expected.json"))[0]["config"].clone();
        let folder = copy(&path, &["tokenizer.json"], &config);
        let tokenizer = TextTokenizer::from_folder(&folder.0).unwrap();
        for unit in ["x", " ", "\n", "7", "a\u{301}"] {
            let text = unit.repeat(100_000 / unit.len()) + "z";
            let start = Instant::now();
            let ids = tokenizer.encode(&text, usize::MAX).unwrap().ids;
            assert!(start.elapsed() < Duration::from_secs(30), "{name}: {unit:?} takes {:?}", start.elapsed());
            if gives_back.contains(&name) {
                assert!(tokenizer.decode(&ids, true).unwrap() == text, "{name}: {unit:?}");
            }
        }
    }
}
