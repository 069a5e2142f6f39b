//! Text to token ids, over the `tokenizers` crate; truncation is ours and equals `truncation=True, max_length=max_len`.

use std::collections::{BTreeMap, HashSet};
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use serde::de::IgnoredAny;
use serde_json::Value;
use tokenizers::decoders::wordpiece::WordPiece as WordPieceDecoder;
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::normalizers::{BertNormalizer, Lowercase, Sequence};
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::processors::template::TemplateProcessing;
use tokenizers::{AddedToken, NormalizerWrapper, PostProcessor, Token, Tokenizer, TruncationDirection};

use crate::error::{InferError, Result};
use crate::modules::json::JsonFile;

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

/// The longest input of a model, and what says so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    /// Largest number of tokens, special tokens included.
    pub limit: usize,
    /// The file and key, for messages.
    pub source: String,
}

/// Tokenizer classes whose `tokenizer_config.json` settles the BERT normaliser, whatever `tokenizer.json` says.
const BERT_CLASSES: [&str; 6] = ["Bert", "DistilBert", "Electra", "MobileBert", "ConvBert", "SqueezeBert"];

impl TextTokenizer {
    /// Reads `tokenizer.json`, else `vocab.txt` (BERT WordPiece), with what `tokenizer_config.json` says beside it.
    /// Truncation and padding set in `tokenizer.json` do not apply.
    pub fn from_folder(folder: &Path) -> Result<Self> {
        let (json, vocab) = (folder.join("tokenizer.json"), folder.join("vocab.txt"));
        let config = JsonFile::optional(folder.join("tokenizer_config.json"))?;
        let (mut inner, file) = if json.is_file() {
            (read_json(&json, &config)?, json)
        } else if vocab.is_file() {
            (read_vocab(folder, &vocab, &config)?, vocab)
        } else {
            return Err(InferError::model(folder, "no tokenizer: looked for tokenizer.json and vocab.txt"));
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
        let names = [named, padding].into_iter().chain(usual).flatten();
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

/// The smallest limit that `sentence_bert_config.json`, `tokenizer_config.json` or the model's configuration
/// (`config_limit`) sets; `None` when none of them does. `model_max_length` above 1e9 means unset.
pub fn window(folder: &Path, config_limit: Option<usize>) -> Result<Option<Window>> {
    let mut tokenizer = JsonFile::optional(folder.join("tokenizer_config.json"))?;
    if tokenizer.get("model_max_length").and_then(Value::as_f64).is_some_and(|length| length > 1e9) {
        tokenizer.map.remove("model_max_length");
    }
    let sentence = sentence_config(folder)?;
    let mut limits = Vec::new();
    for (file, key) in [(&sentence, "max_seq_length"), (&tokenizer, "model_max_length")] {
        if let Some(limit) = file.positive(key)? {
            let name = file.file.file_name().unwrap_or_default().to_string_lossy();
            limits.push(Window { limit, source: format!("`{key}` of {name}") });
        }
    }
    limits.extend(config_limit.map(|limit| Window { limit, source: "the positions of config.json".to_owned() }));
    Ok(limits.into_iter().min_by_key(|window| window.limit))
}

/// The transformer's settings of sentence-transformers, under the first of its names that exists.
fn sentence_config(folder: &Path) -> Result<JsonFile> {
    let names = ["bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet"];
    let files = names.map(|name| folder.join(format!("sentence_{name}_config.json")));
    let found = files.iter().find(|file| file.is_file()).unwrap_or(&files[0]);
    JsonFile::optional(found.clone())
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

/// A token of a configuration: the text itself, or an object with `content`.
fn token_text(value: &Value) -> Option<String> {
    value.as_str().or_else(|| value.get("content")?.as_str()).map(str::to_owned)
}

/// Whether `tokenizer_class` names one of [`BERT_CLASSES`]; `None` when the file names no class.
fn is_bert(config: &JsonFile) -> Result<Option<bool>> {
    let class = config.text("tokenizer_class")?;
    let family = class.and_then(|class| class.trim_end_matches("Fast").strip_suffix("Tokenizer"));
    Ok(class.map(|_| family.is_some_and(|family| BERT_CLASSES.contains(&family))))
}

fn read_json(file: &Path, config: &JsonFile) -> Result<Tokenizer> {
    let bytes = std::fs::read(file).map_err(|error| InferError::io(file, error))?;
    // The crate panics on some malformed files: broken JSON in its decoders, a template of unknown tokens.
    serde_json::from_slice::<IgnoredAny>(&bytes).map_err(|error| failure(file, error))?;
    let loaded = catch_unwind(|| {
        let inner = Tokenizer::from_bytes(&bytes)?;
        if let Some(processor) = inner.get_post_processor() {
            let _ = processor.process(Default::default(), None, true);
            let _ = processor.process(Default::default(), Some(Default::default()), true);
        }
        Ok::<_, tokenizers::Error>(inner)
    });
    let loaded = loaded.map_err(|_| failure(file, "malformed: the tokenizers crate cannot work with it"))?;
    let mut inner = loaded.map_err(|error| failure(file, error))?;
    let class = is_bert(config)?;
    if let Some(NormalizerWrapper::BertNormalizer(normalizer)) = inner.get_normalizer()
        && class != Some(false)
    {
        let mut normalizer = if class == Some(true) { BertNormalizer::default() } else { *normalizer };
        bert_flags(&mut normalizer, config)?;
        inner.with_normalizer(Some(normalizer));
    }
    Ok(inner)
}

fn bert_flags(normalizer: &mut BertNormalizer, config: &JsonFile) -> Result<()> {
    normalizer.lowercase = config.flag("do_lower_case")?.unwrap_or(normalizer.lowercase);
    normalizer.strip_accents = config.flag("strip_accents")?.or(normalizer.strip_accents);
    normalizer.handle_chinese_chars = config.flag("tokenize_chinese_chars")?.unwrap_or(normalizer.handle_chinese_chars);
    Ok(())
}

/// `do_lower_case` of the sentence-transformers settings: lower case before anything else.
fn lower_case_first(inner: &mut Tokenizer) {
    let mut steps = vec![NormalizerWrapper::Lowercase(Lowercase)];
    steps.extend(inner.get_normalizer().cloned());
    inner.with_normalizer(Some(Sequence::new(steps)));
}

fn read_vocab(folder: &Path, file: &Path, config: &JsonFile) -> Result<Tokenizer> {
    if is_bert(config)? == Some(false) {
        let class = config.text("tokenizer_class")?.unwrap_or_default();
        return Err(failure(
            file,
            format!("`{class}` of tokenizer_config.json is not BERT WordPiece: tokenizer.json needed"),
        ));
    }
    if config.flag("do_basic_tokenize")? == Some(false) || config.get("never_split").is_some() {
        let keys = "`do_basic_tokenize` false and `never_split` are";
        return Err(failure(&config.file, format!("{keys} not supported without tokenizer.json")));
    }
    let text = std::fs::read_to_string(file).map_err(|error| InferError::io(file, error))?;
    // The crate's own reader would trim tokens. The last of equal lines counts.
    let mut vocab = WordPiece::read_bytes(b"").map_err(|error| failure(file, error))?;
    vocab.extend((0..).zip(text.lines()).map(|(id, token)| (token.to_owned(), id)));
    let name = |key: &str, usual: &str| config.get(key).and_then(token_text).unwrap_or_else(|| usual.to_owned());
    let [unk, cls, sep, pad, mask] = ["unk", "cls", "sep", "pad", "mask"]
        .map(|role| name(&format!("{role}_token"), &format!("[{}]", role.to_uppercase())));
    for token in [&unk, &cls, &sep] {
        if !vocab.contains_key(token) {
            return Err(failure(file, format!("the special token `{token}` is missing")));
        }
    }
    let model = WordPiece::builder().vocab(vocab).unk_token(unk.clone()).max_input_chars_per_word(100).build();
    let mut inner = Tokenizer::new(model.map_err(|error| failure(file, error))?);
    let mut normalizer = BertNormalizer::default();
    bert_flags(&mut normalizer, config)?;
    inner.with_normalizer(Some(normalizer));
    inner.with_pre_tokenizer(Some(BertPreTokenizer));
    inner.with_decoder(Some(WordPieceDecoder::default()));
    let special: Vec<_> = [&pad, &unk, &cls, &sep, &mask]
        .into_iter()
        .filter(|token| inner.token_to_id(token).is_some())
        .map(|token| AddedToken::from(token.clone(), true))
        .collect();
    inner.add_special_tokens(&special);
    add_tokens(folder, config, &mut inner)?;
    let ids = [&cls, &sep].map(|token| (token.clone(), inner.token_to_id(token).unwrap_or_default()));
    let template = TemplateProcessing::builder()
        .try_single(format!("{cls}:0 $A:0 {sep}:0"))
        .and_then(|builder| builder.try_pair(format!("{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1")))
        .map_err(|error| failure(file, error))?
        .special_tokens(ids.to_vec())
        .build();
    inner.with_post_processor(Some(template.map_err(|error| failure(file, error))?));
    Ok(inner)
}

/// Registers the tokens that `added_tokens.json` and `added_tokens_decoder` put beside the vocabulary.
fn add_tokens(folder: &Path, config: &JsonFile, inner: &mut Tokenizer) -> Result<()> {
    let mut tokens = BTreeMap::new();
    let plain = JsonFile::optional(folder.join("added_tokens.json"))?;
    for (content, id) in &plain.map {
        let id = id.as_u64().ok_or_else(|| plain.wrong(content, "a token id", id))?;
        tokens.insert(id, AddedToken::from(content.clone(), false));
    }
    if let Some(map) = config.get("added_tokens_decoder").and_then(Value::as_object) {
        for (id, token) in map {
            let parsed = id.parse::<u64>().ok().zip(serde_json::from_value::<AddedToken>(token.clone()).ok());
            let (id, token) =
                parsed.ok_or_else(|| config.wrong("added_tokens_decoder", "added tokens by id", token))?;
            tokens.insert(id, token);
        }
    }
    for (id, token) in tokens {
        inner.add_tokens(std::slice::from_ref(&token));
        if inner.token_to_id(&token.content).map(u64::from) != Some(id) {
            let detail =
                format!("the added token `{}` has id {id}, which does not follow the vocabulary", token.content);
            return Err(failure(&config.file, detail));
        }
    }
    Ok(())
}
