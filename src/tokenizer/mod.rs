//! Text to token ids and back, over the `tokenizers` crate; truncation is ours and equals
//! `truncation=True, max_length=max_len`.
//!
//! A folder's tokenizer.json says everything (`saved`). Without it the tokenizer is built from what the folder holds,
//! by the rules of its `family`: vocab.txt (`wordpiece`), vocab.json and merges.txt (`byte_bpe`) or a SentencePiece
//! model (`sentencepiece`), completed by the special tokens (`special`) and where they stand (`template`). A GGUF file
//! holds the same in its metadata (`gguf`).

mod byte_bpe;
mod family;
mod gguf;
mod saved;
mod sentencepiece;
mod special;
mod stream;
mod template;
mod window;
mod wordpiece;

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use tokenizers::normalizers::{Lowercase, Sequence};
use tokenizers::{NormalizerWrapper, PostProcessor, Token, Tokenizer, TruncationDirection};

use self::family::{Family, Vocabulary};
use self::special::{Role, Specials, token_text};
pub use self::stream::TokenStream;
pub(crate) use self::window::window_of;
pub use self::window::{Window, window};
use crate::error::{InferError, Result};
use crate::modules::json::{JsonFile, Settings, sentence_config};

/// The token ids of one input.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Encoding {
    /// Token ids, special tokens included.
    pub ids: Vec<u32>,
    /// Segment of each token: 0, or 1 in the second text of a pair (where the tokenizer tells them apart).
    pub type_ids: Vec<u32>,
}

/// Turns text into token ids. Cheap to share between threads: every method takes `&self`.
pub struct TextTokenizer {
    inner: Tokenizer,
    file: PathBuf,
    truncates_left: bool,
    special_ids: HashSet<u32>,
    pad_id: Option<u32>,
    vocab_size: usize,
}

impl TextTokenizer {
    /// Reads `tokenizer.json`, else the vocabulary files of the folder's family (see the module), with what
    /// `tokenizer_config.json` says beside them; or the metadata of the GGUF file that the argument stands for.
    /// Truncation and padding set in `tokenizer.json` do not apply.
    pub fn from_folder(folder: &Path) -> Result<Self> {
        Self::of(&Settings::open(folder)?)
    }

    /// The same for settings that are open.
    pub(crate) fn of(settings: &Settings) -> Result<Self> {
        let folder = settings.place.as_path();
        let json = folder.join("tokenizer.json");
        let config = settings.read("tokenizer_config.json")?;
        let (mut inner, file, usual_pad) = if let Some(gguf) = &settings.gguf {
            let (inner, pad) = gguf::read(gguf, &config)?;
            (inner, settings.place.clone(), pad)
        } else if json.is_file() {
            (saved::read(folder, &json, &config)?, json, None)
        } else {
            from_vocabulary(folder, &config)?
        };
        if sentence_config(folder)?.flag("do_lower_case")?.unwrap_or(false) {
            lower_case_first(&mut inner);
        }
        let direction = inner.get_truncation().map(|truncation| truncation.direction);
        let truncates_left = match config.text("truncation_side")? {
            Some("left") => true,
            Some("right") => false,
            Some(side) => return Err(config.error(format!("`truncation_side` is `{side}`, expected left or right"))),
            None => direction == Some(TruncationDirection::Left),
        };
        let map = JsonFile::optional(folder.join("special_tokens_map.json"))?;
        let named = [&config, &map].into_iter().find_map(|file| token_text(file.get("pad_token")?));
        let padding = inner.get_padding().map(|padding| padding.pad_token.clone());
        let usual = ["[PAD]", "<pad>"].map(|name| Some(name.to_owned()));
        let names = [named, padding, usual_pad].into_iter().chain(usual).flatten();
        let pad_id = names.into_iter().find_map(|name| inner.token_to_id(&name));
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|error| failure(&file, error))?;
        let added = inner.get_added_tokens_decoder().into_iter();
        let special_ids = added.filter(|(_, token)| token.special).map(|(id, _)| id).collect();
        let last = inner.get_vocab(true).into_values().max();
        let vocab_size = last.map_or(0, |id| (id as usize).saturating_add(1));
        Ok(Self { inner, file, truncates_left, special_ids, pad_id, vocab_size })
    }

    /// The ids of `text` with special tokens: at most `max_len`, the content cut to fit.
    pub fn encode(&self, text: &str, max_len: usize) -> Result<Encoding> {
        let room = self.room(max_len, false)?;
        let ids = self.content(text)?;
        self.finish(self.cut(&ids, room), None)
    }

    /// The ids of a pair with special tokens, at most `max_len`: the longer text is cut first.
    pub fn encode_pair(&self, a: &str, b: &str, max_len: usize) -> Result<Encoding> {
        let room = self.room(max_len, true)?;
        let (a, b) = (self.content(a)?, self.content(b)?);
        let (keep_a, keep_b) = pair_lengths(a.len(), b.len(), room);
        self.finish(self.cut(&a, keep_a), Some(self.cut(&b, keep_b)))
    }

    /// [`encode`](Self::encode) of each text, in parallel; one text's error leaves the others alone.
    pub fn encode_batch(&self, texts: &[&str], max_len: usize) -> Vec<Result<Encoding>> {
        texts.par_iter().map(|text| self.encode(text, max_len)).collect()
    }

    /// How many tokens `prompt` takes at the start of an encoding: its own and the special tokens before it. A special
    /// token at the end of the prompt's encoding does not count. Callers cap it by the length of what they encode.
    pub fn prefix_len(&self, prompt: &str) -> Result<usize> {
        if prompt.is_empty() {
            return Ok(0);
        }
        let ids = self.encode(prompt, usize::MAX)?.ids;
        let trailing = ids.last().is_some_and(|id| self.special_ids.contains(id));
        Ok(ids.len() - usize::from(trailing))
    }

    /// One more than the largest token id, added tokens included.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// How many special tokens an encoding of one text has besides its content.
    pub fn num_special_tokens(&self) -> usize {
        self.specials(false)
    }

    /// The id of the padding token, if there is one.
    pub fn pad_id(&self) -> Option<u32> {
        self.pad_id
    }

    /// The token of an id.
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// The id of a token, added tokens included.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// The text of `ids`. Ids without a token are passed over, and special tokens too with `skip_special`; bytes that
    /// are not UTF-8 become replacement characters.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        self.inner.decode(ids, skip_special).map_err(|error| failure(&self.file, error))
    }

    /// [`decode`](Self::decode) for ids that come one by one.
    pub fn stream(&self, skip_special: bool) -> TokenStream<'_> {
        TokenStream::new(self, skip_special)
    }

    fn specials(&self, pair: bool) -> usize {
        self.inner.get_post_processor().map_or(0, |processor| processor.added_tokens(pair))
    }

    /// Number of content tokens that fit.
    fn room(&self, max_len: usize, pair: bool) -> Result<usize> {
        let specials = self.specials(pair);
        max_len.checked_sub(specials).filter(|room| *room > 0).ok_or_else(|| {
            let detail = "leaves no room for text beside the tokenizer's special tokens";
            InferError::InvalidArgument(format!("a maximum length of {max_len} {detail} ({specials})"))
        })
    }

    fn content(&self, text: &str) -> Result<Vec<u32>> {
        let encoding = self.inner.encode_fast(text, false).map_err(|error| failure(&self.file, error))?;
        Ok(encoding.get_ids().to_vec())
    }

    fn cut<'a>(&self, ids: &'a [u32], keep: usize) -> &'a [u32] {
        let keep = keep.min(ids.len());
        if self.truncates_left { &ids[ids.len() - keep..] } else { &ids[..keep] }
    }

    /// Adds the special tokens. The crate's own truncation would also post-process every piece it cuts off.
    fn finish(&self, a: &[u32], b: Option<&[u32]>) -> Result<Encoding> {
        let piece = |ids: &[u32], segment| {
            let tokens = ids.iter().map(|id| Token::new(*id, String::new(), (0, 0))).collect();
            tokenizers::Encoding::from_tokens(tokens, segment)
        };
        let done = self.inner.post_process(piece(a, 0), b.map(|ids| piece(ids, 1)), true);
        let done = done.map_err(|error| failure(&self.file, error))?;
        Ok(Encoding { ids: done.get_ids().to_vec(), type_ids: done.get_type_ids().to_vec() })
    }
}

impl std::fmt::Debug for TextTokenizer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("TextTokenizer").field("file", &self.file).finish_non_exhaustive()
    }
}

/// Whether a model has a tokenizer, be it well-formed or not: a vocabulary file in its folder, or one in the metadata of its
/// GGUF file.
///
/// # Errors
/// A GGUF file that cannot be opened, or several in a folder.
pub fn has_tokenizer(model: &Path) -> Result<bool> {
    let settings = Settings::open(model)?;
    let names = || ["tokenizer.json", "vocab.json", "vocab.txt"].into_iter().chain(SENTENCEPIECE_FILES);
    Ok(match &settings.gguf {
        Some(gguf) => gguf.get("tokenizer.ggml.model").is_some(),
        None => names().any(|name| settings.place.join(name).is_file()),
    })
}

/// Names of SentencePiece files.
const SENTENCEPIECE_FILES: [&str; 5] =
    ["spiece.model", "sentencepiece.bpe.model", "spm.model", "tokenizer.model", "sentencepiece.model"];

/// The tokenizer of the vocabulary files of a folder without tokenizer.json, the file that counts in messages, and the
/// padding token.
fn from_vocabulary(folder: &Path, config: &JsonFile) -> Result<(Tokenizer, PathBuf, Option<String>)> {
    let family = family::of_folder(folder, config)?;
    let specials = Specials::read(folder, config, family)?;
    let file = vocabulary_file(folder, family)?;
    let (mut inner, own) = match family.vocabulary {
        Vocabulary::WordPiece => (wordpiece::read(&file, config, &specials)?, Vec::new()),
        Vocabulary::ByteBpe(split) => (byte_bpe::read(&file, split, config)?, Vec::new()),
        Vocabulary::SentencePiece(layout) => sentencepiece::read(&file, layout, config, &specials)?,
    };
    family.template.check(&file, &specials, &inner)?;
    specials.register(&mut inner, own, family.vocabulary == Vocabulary::WordPiece)?;
    let template = family.template.processor(config, &specials, &inner)?;
    inner.with_post_processor(Some(template));
    Ok((inner, file, specials.role(Role::Pad).map(str::to_owned)))
}

fn vocabulary_file(folder: &Path, family: &Family) -> Result<PathBuf> {
    let (names, with): (&[&str], &[&str]) = match family.vocabulary {
        Vocabulary::WordPiece => (&["vocab.txt"], &[]),
        Vocabulary::ByteBpe(_) => (&["vocab.json"], &["merges.txt"]),
        Vocabulary::SentencePiece(_) => (&SENTENCEPIECE_FILES, &[]),
    };
    let found = names.iter().map(|name| folder.join(name)).find(|file| file.is_file());
    found.filter(|_| with.iter().all(|name| folder.join(name).is_file())).ok_or_else(|| {
        let looked = names.iter().chain(with).copied().collect::<Vec<_>>().join(", ");
        InferError::model(folder, format!("no tokenizer: looked for tokenizer.json and {looked}"))
    })
}

/// How much of each text of a pair stays: the longer one is cut to the shorter one, then both alike.
fn pair_lengths(a: usize, b: usize, room: usize) -> (usize, usize) {
    let (short, long) = (a.min(b), a.max(b));
    let fits = a.checked_add(b).is_some_and(|total| total <= room);
    let (short, long) = match room.checked_sub(short) {
        _ if fits => (short, long),
        Some(rest) if rest >= short => (short, rest),
        _ => (room / 2, room / 2 + room % 2),
    };
    if a > b { (long, short) } else { (short, long) }
}

fn failure(file: &Path, error: impl std::fmt::Display) -> InferError {
    InferError::TokenizerError { file: file.to_path_buf(), detail: error.to_string() }
}

/// `do_lower_case` of the sentence-transformers settings: lower case before anything else.
fn lower_case_first(inner: &mut Tokenizer) {
    let mut steps = vec![NormalizerWrapper::Lowercase(Lowercase)];
    steps.extend(inner.get_normalizer().cloned());
    inner.with_normalizer(Some(Sequence::new(steps)));
}
