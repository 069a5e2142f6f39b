//! The tokenizer in a GGUF file's metadata.
//!
//! `tokenizer.ggml.model` names the kind: `gpt2` byte-level BPE, cut into words as `tokenizer.ggml.pre` says; `llama` a
//! SentencePiece model of pairs with pieces for bytes; `t5` a SentencePiece Unigram model; `bert` WordPiece. Ids are
//! the places in `tokenizer.ggml.tokens`. Which tokens are special, and whether one begins or ends a text, stands in keys
//! that are read as a tokenizer_config.json.
//!
//! The files do not say whether a WordPiece vocabulary is of lower case: it is taken for that unless a word of it, other
//! than a control token or one in square brackets, has an upper-case letter.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use tokenizers::{AddedToken, Tokenizer};

use super::family::{self, Family, Split, Vocabulary};
use super::sentencepiece::Parts;
use super::special::{Role, Specials};
use super::{byte_bpe, failure, sentencepiece, wordpiece};
use crate::error::{InferError, Result};
use crate::modules::json::JsonFile;
use crate::weights::GgufFile;

/// Marks the beginning of a word in WordPiece tokens.
const WORD: char = '\u{2581}';

/// `tokenizer.ggml.pre` of byte-level BPE: how words are cut, and the class of tokenizers that it stands for.
const SPLITS: [(&str, Split, &str); 24] = [
    ("gpt-2", Split::Gpt2, "GPT2Tokenizer"),
    ("phi-2", Split::Gpt2, "GPT2Tokenizer"),
    ("jina-es", Split::Gpt2, "GPT2Tokenizer"),
    ("jina-de", Split::Gpt2, "GPT2Tokenizer"),
    ("jina-v2-es", Split::Gpt2, "RobertaTokenizer"),
    ("jina-v2-de", Split::Gpt2, "RobertaTokenizer"),
    ("jina-v1-en", Split::Gpt2, "RobertaTokenizer"),
    ("jina-v2-code", Split::Gpt2, "RobertaTokenizer"),
    ("roberta-bpe", Split::Gpt2, "RobertaTokenizer"),
    ("mpt", Split::Gpt2, "GPT2Tokenizer"),
    ("olmo", Split::Gpt2, "GPT2Tokenizer"),
    ("starcoder", Split::Digits, "GPT2Tokenizer"),
    ("refact", Split::Digits, "GPT2Tokenizer"),
    ("smollm", Split::Digits, "GPT2Tokenizer"),
    ("codeshell", Split::Digits, "GPT2Tokenizer"),
    ("command-r", Split::Digits, "GPT2Tokenizer"),
    ("qwen2", Split::Qwen2, "Qwen2Tokenizer"),
    ("deepseek-r1-qwen", Split::Qwen2, "Qwen2Tokenizer"),
    ("megrez", Split::Qwen2, "Qwen2Tokenizer"),
    ("llama-bpe", Split::Llama3, ""),
    ("llama3", Split::Llama3, ""),
    ("llama-v3", Split::Llama3, ""),
    ("smaug-bpe", Split::Llama3, ""),
    ("dbrx", Split::Llama3, ""),
];

/// The vocabulary of a file.
struct Words<'a> {
    file: &'a GgufFile,
    tokens: Vec<&'a str>,
    /// 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte; as many as tokens.
    kinds: Vec<u64>,
}

impl<'a> Words<'a> {
    fn read(file: &'a GgufFile) -> Result<Self> {
        let key = "tokenizer.ggml.tokens";
        let tokens = file.texts(key)?.filter(|tokens| !tokens.is_empty());
        let absent = || failure(file.path(), format!("the metadata key `{key}` is missing or empty"));
        let tokens = tokens.ok_or_else(absent)?;
        let mut seen = HashSet::with_capacity(tokens.len());
        if let Some(token) = tokens.iter().find(|token| !seen.insert(**token)) {
            return Err(failure(file.path(), format!("the token `{token}` stands twice in the vocabulary")));
        }
        let key = "tokenizer.ggml.token_type";
        let kinds = match file.numbers(key)? {
            None => vec![1; tokens.len()],
            Some(kinds) if kinds.len() == tokens.len() => kinds.into_iter().map(|kind| kind as u64).collect(),
            Some(_) => return Err(file.wrong(key, &format!("a type for each of {} tokens", tokens.len()))),
        };
        Ok(Self { file, tokens, kinds })
    }

    /// Control tokens, which are special, and those of the user, which are found whole in a text.
    fn own(&self) -> Vec<AddedToken> {
        let own = self.tokens.iter().zip(&self.kinds).filter(|(_, kind)| matches!(kind, 3 | 4));
        own.map(|(token, kind)| AddedToken::from(token.to_string(), *kind == 3).normalized(false)).collect()
    }
}

/// The tokenizer of a file, the file, and its padding token.
pub(super) fn read(path: &Path, config: &JsonFile) -> Result<(Tokenizer, PathBuf, Option<String>)> {
    let file = GgufFile::open(path)?;
    let key = "tokenizer.ggml.model";
    let Some(model) = file.text(key)? else {
        return Err(InferError::model(path, format!("no tokenizer: the metadata key `{key}` is missing")));
    };
    let (inner, pad) = build(&file, model, config).map_err(|error| match error {
        InferError::ModelError { file, detail } => failure(&file, detail),
        other => other,
    })?;
    Ok((inner, path.to_path_buf(), pad))
}

/// The tokenizer, and its padding token.
fn build(file: &GgufFile, model: &str, config: &JsonFile) -> Result<(Tokenizer, Option<String>)> {
    let path = file.path();
    let words = Words::read(file)?;
    let (family, split) = family_of(file, model, config)?;
    let specials = Specials::read(path, config, family)?;
    let (mut inner, own) = match family.vocabulary {
        Vocabulary::WordPiece => (word_piece(&words, config, &specials)?, Vec::new()),
        Vocabulary::ByteBpe(_) => (byte_pairs(&words, split, config)?, words.own()),
        Vocabulary::SentencePiece(_) => pieces(&words, model == "t5", config, &specials)?,
    };
    family.template.check(path, &specials, &inner)?;
    specials.register(&mut inner, own, true)?;
    let template = family.template.processor(config, &specials, &inner)?;
    inner.with_post_processor(Some(template));
    Ok((inner, specials.role(Role::Pad).map(str::to_owned)))
}

/// The family whose template and special tokens a file has, and how byte-level BPE cuts words.
fn family_of(file: &GgufFile, model: &str, config: &JsonFile) -> Result<(&'static Family, Split)> {
    let class = match model {
        "bert" => "BertTokenizer",
        "llama" => "LlamaTokenizer",
        // XLM-RoBERTa's files are of this kind, and begin a text with a token of its own.
        "t5" if config.flag("add_bos_token")?.unwrap_or(false) => "XLMRobertaTokenizer",
        "t5" => "T5Tokenizer",
        "gpt2" => {
            let key = "tokenizer.ggml.pre";
            let pre = file.text(key)?.unwrap_or("default");
            let known = SPLITS.iter().find(|(name, ..)| *name == pre);
            let Some((_, split, class)) = known else {
                let names: Vec<_> = SPLITS.iter().map(|(name, ..)| *name).collect();
                return Err(file.wrong(key, &format!("one of {}", names.join(", "))));
            };
            return Ok((family::of_class(class).unwrap_or(family::llama3()), *split));
        }
        _ => return Err(file.wrong("tokenizer.ggml.model", "gpt2, llama, bert or t5")),
    };
    let family = family::of_class(class);
    let family = family.ok_or_else(|| InferError::InvalidArgument(format!("no family of tokenizers has {class}")))?;
    Ok((family, Split::Gpt2))
}

fn byte_pairs(words: &Words, split: Split, config: &JsonFile) -> Result<Tokenizer> {
    let (file, key) = (words.file, "tokenizer.ggml.merges");
    let lines = file.texts(key)?.ok_or_else(|| file.wrong(key, "an array of merges"))?;
    let wrong = |number| failure(file.path(), format!("merge {number}: expected two tokens with a space between"));
    let merges = lines.iter().enumerate().map(|(i, line)| byte_bpe::merge(line).ok_or_else(|| wrong(i)));
    let merges = merges.collect::<Result<Vec<_>>>()?;
    let vocab = words.tokens.iter().map(|token| token.to_string()).zip(0..).collect();
    byte_bpe::of_vocabulary(vocab, merges, split, config).map_err(|detail| failure(file.path(), detail))
}

fn pieces(
    words: &Words,
    unigram: bool,
    config: &JsonFile,
    specials: &Specials,
) -> Result<(Tokenizer, Vec<AddedToken>)> {
    let (file, key) = (words.file, "tokenizer.ggml.scores");
    let scores = file.numbers(key)?.filter(|scores| scores.len() == words.tokens.len());
    let scores =
        scores.ok_or_else(|| file.wrong(key, &format!("a score for each of {} tokens", words.tokens.len())))?;
    let pieces = words.tokens.iter().zip(&scores).zip(&words.kinds);
    let charsmap = file.numbers("tokenizer.ggml.precompiled_charsmap")?.unwrap_or_default();
    let parts = Parts {
        pieces: pieces.map(|((token, score), kind)| (*token, *score as f32, *kind)).collect(),
        unigram,
        charsmap: charsmap.into_iter().map(|byte| byte as i64 as u8).collect(),
        add_dummy_prefix: file.flag("tokenizer.ggml.add_space_prefix")?.unwrap_or(true),
        remove_extra_whitespaces: file.flag("tokenizer.ggml.remove_extra_whitespaces")?.unwrap_or(false),
    };
    sentencepiece::of_parts(parts, file.path(), config, specials)
}

/// Tokens as in a vocab.txt: the converter marks beginnings of words instead of what continues one.
fn word_piece(words: &Words, config: &JsonFile, specials: &Specials) -> Result<Tokenizer> {
    let plain = |(token, kind): (&&str, &u64)| match token.strip_prefix(WORD) {
        _ if *kind == 3 => token.to_string(),
        Some(word) => word.to_string(),
        None => format!("##{token}"),
    };
    let tokens: Vec<String> = words.tokens.iter().zip(&words.kinds).map(plain).collect();
    let lower = match words.file.flag("tokenizer.ggml.normalizer.lowercase")? {
        Some(lower) => lower,
        None => {
            let word = |token: &String| !token.starts_with('[') && token.chars().any(char::is_uppercase);
            !tokens.iter().zip(&words.kinds).any(|(token, kind)| *kind != 3 && word(token))
        }
    };
    let mut map = config.map.clone();
    map.insert("do_lower_case".into(), lower.into());
    let config = JsonFile { file: config.file.clone(), map };
    wordpiece::of_tokens(tokens.into_iter(), words.file.path(), &config, specials)
}
