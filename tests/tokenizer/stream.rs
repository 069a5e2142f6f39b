//! Ids to text: back again, one by one, and cut anywhere.

use kin_infer::tokenizer::TextTokenizer;
use serde_json::json;

use super::common::fixture;
use super::families::{copy, folders, read, texts};
use super::{Folder, words};

/// A generator whose numbers are the same on every machine.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % limit
    }

    /// Text of many scripts, with what is easily lost: spaces, line ends, joiners, marks, controls.
    fn text(&mut self) -> String {
        let parts = [
            "fn ",
            "  ",
            "\n",
            "\t",
            "é",
            "e\u{301}",
            "\u{4f60}",
            "\u{1f469}\u{200d}\u{1f467}",
            "\r\n",
            "x",
            "_",
            "0",
            "\0",
            "\u{feff}",
            "\u{fffd}",
            "'s",
            "S",
            "\u{10ffff}",
            " \u{a0}",
            "ab",
            "==",
            ".",
            "\u{85}",
            "\u{2581}",
        ];
        (0..self.below(20)).map(|_| parts[self.below(parts.len())]).collect()
    }
}

fn tokenizers() -> impl Iterator<Item = (String, TextTokenizer)> {
    folders().into_iter().map(|path| {
        let config = read(&path.join("expected.json"))[0]["config"].clone();
        let folder = copy(&path, &["tokenizer.json"], &config);
        (path.display().to_string(), TextTokenizer::from_folder(&folder.0).unwrap())
    })
}

/// Everything that a stream returns for `ids`, each part not empty.
fn streamed(tokenizer: &TextTokenizer, ids: &[u32], skip_special: bool) -> String {
    let mut stream = tokenizer.stream(skip_special);
    let mut parts: Vec<String> = ids.iter().filter_map(|id| stream.push(*id).unwrap()).collect();
    parts.extend(stream.finish().unwrap());
    assert!(parts.iter().all(|part| !part.is_empty()));
    parts.concat()
}

#[test]
fn byte_level_ids_give_the_text_back() {
    for name in ["roberta", "gpt2", "deberta", "llama3"] {
        let folder = copy(&fixture(&format!("tokenizer-{name}")), &["tokenizer.json"], &json!({}));
        let tokenizer = TextTokenizer::from_folder(&folder.0).unwrap();
        let mut random = Random(7);
        for _ in 0..2000 {
            let text = random.text();
            let ids = tokenizer.encode(&text, usize::MAX).unwrap().ids;
            assert_eq!(tokenizer.decode(&ids, true).unwrap(), text, "{name}");
        }
    }
}

#[test]
fn a_stream_gives_the_text_of_all_ids() {
    for (name, tokenizer) in tokenizers() {
        let mut random = Random(11);
        let own: Vec<_> = texts().iter().map(|text| tokenizer.encode(text, usize::MAX).unwrap().ids).collect();
        let made = (0..300).map(|_| {
            let limit = tokenizer.vocab_size() + 2;
            (0..random.below(40)).map(|_| random.below(limit) as u32).collect()
        });
        for ids in own.into_iter().chain(made) {
            for skip_special in [false, true] {
                let whole = tokenizer.decode(&ids, skip_special).unwrap();
                assert_eq!(streamed(&tokenizer, &ids, skip_special), whole, "{name}: {ids:?} {skip_special}");
            }
        }
    }
}

#[test]
fn a_stream_holds_back_half_a_character_and_no_more() {
    for name in ["tokenizer-gpt2", "tokenizer-llama"] {
        let config = read(&fixture(name).join("expected.json"))[0]["config"].clone();
        let folder = copy(&fixture(name), &["tokenizer.json"], &config);
        let tokenizer = TextTokenizer::from_folder(&folder.0).unwrap();
        let ids = tokenizer.encode("go \u{1f9ff}\u{1f9ff} on and on", usize::MAX).unwrap().ids;
        let mut stream = tokenizer.stream(true);
        let parts: Vec<_> = ids.iter().map(|id| stream.push(*id).unwrap()).collect();
        assert!(parts.iter().flatten().all(|part| !part.contains(char::REPLACEMENT_CHARACTER)), "{name}: {parts:?}");
        assert!(parts.iter().filter(|part| part.is_none()).count() >= 6, "{name}: {parts:?}");
        let last = parts.iter().rposition(Option::is_none).unwrap();
        assert!(parts.len() - last > 4, "words come at once: {name}: {parts:?}");
        assert_eq!(stream.finish().unwrap(), None);
        assert_eq!(parts.into_iter().flatten().collect::<String>(), "go \u{1f9ff}\u{1f9ff} on and on");
        let cut = ids.len() - tokenizer.encode("\u{1f9ff} on and on", usize::MAX).unwrap().ids.len() + 3;
        assert_eq!(streamed(&tokenizer, &ids[..cut], true), tokenizer.decode(&ids[..cut], true).unwrap());
    }
}

#[test]
fn special_and_unknown_ids_are_passed_over() {
    let folder = Folder::new("decode", &[("tokenizer.json", &words(json!({})))]);
    let tokenizer = TextTokenizer::from_folder(&folder.0).unwrap();
    assert_eq!(tokenizer.decode(&[2, 0, 77, 3], true).unwrap(), "one two");
    assert_eq!(tokenizer.decode(&[2, 0, 77, 3], false).unwrap(), "one <pad> two");
    assert_eq!(tokenizer.decode(&[], false).unwrap(), "");
    assert_eq!(streamed(&tokenizer, &[2, 0, 77, 3, u32::MAX], true), "one two");
    assert_eq!(streamed(&tokenizer, &[], true), "");
    assert_eq!((tokenizer.token_id("far"), tokenizer.token_id("near")), (Some(9), None));
}

#[test]
fn a_decoder_that_changes_earlier_text_is_no_stream() {
    let decoder = json!({"type": "Sequence", "decoders": [
        {"type": "Fuse"},
        {"type": "Replace", "pattern": {"String": "onethree"}, "content": "!"},
    ]});
    let folder = Folder::new("no-stream", &[("tokenizer.json", &words(json!({"decoder": decoder})))]);
    let tokenizer = TextTokenizer::from_folder(&folder.0).unwrap();
    let mut stream = tokenizer.stream(false);
    assert_eq!(stream.push(2).unwrap().as_deref(), Some("one"));
    assert_eq!(tokenizer.decode(&[2, 4], false).unwrap(), "!");
    assert!(stream.push(4).unwrap_err().to_string().contains("stream"));
}
