//! The tokenizer in a GGUF file's metadata.
//!
//! `tokenizer.ggml.model` names the kind: `gpt2` byte-level BPE, cut into words as `tokenizer.ggml.pre` says; `llama` a
//! SentencePiece model of pairs with pieces for bytes; `t5` a SentencePiece Unigram model; `bert` WordPiece. Ids are
//! the places in `tokenizer.ggml.tokens`. Which tokens are special, and whether one begins or ends a text, stands in keys
//! that are read as a tokenizer_config.json.
//!
//! Many files do not say whether a WordPiece vocabulary is of lower case: it is taken for that unless a word of it, other
//! than a control token or one in square brackets, has an upper-case letter.

use std::collections::HashSet;

use tokenizers::{AddedToken, Tokenizer};

use super::family::{self, Family, Split, Vocabulary};
use super::sentencepiece::Parts;
use super::special::{Role, Specials};
use super::template::{Part, Template};
use super::{byte_bpe, failure, sentencepiece, wordpiece};
use crate::error::{InferError, Result};
use crate::modules::gguf::{CONTROL, OF_USER, ROLES, kinds, word_piece};
use crate::modules::json::JsonFile;
use crate::weights::GgufFile;
use crate::weights::gguf::Value;

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
    ("dbrx", Split::Dbrx, "GPT2Tokenizer"),
    ("smaug-bpe", Split::Dbrx, "GPT2Tokenizer"),
    ("llama-bpe", Split::Llama3, ""),
    ("llama3", Split::Llama3, ""),
    ("llama-v3", Split::Llama3, ""),
];

/// The vocabulary of a file.
struct Words<'a> {
    file: &'a GgufFile,
    tokens: Vec<&'a str>,
    /// As many as tokens.
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
        let kinds = kinds(file, tokens.len())?;
        Ok(Self { file, tokens, kinds })
    }

    /// Control tokens, which are special, and those of the user, which are found whole in a text.
    fn own(&self) -> Vec<AddedToken> {
        let own = self.tokens.iter().zip(&self.kinds).filter(|(_, kind)| [CONTROL, OF_USER].contains(*kind));
        own.map(|(token, kind)| AddedToken::from(token.to_string(), *kind == CONTROL).normalized(false)).collect()
    }
}

/// The tokenizer of a file, and its padding token.
pub(super) fn read(file: &GgufFile, config: &JsonFile) -> Result<(Tokenizer, Option<String>)> {
    let key = "tokenizer.ggml.model";
    let Some(model) = file.text(key)? else {
        return Err(InferError::model(file.path(), format!("no tokenizer: the metadata key `{key}` is missing")));
    };
    build(file, model, config).map_err(|error| match error {
        InferError::ModelError { file, detail } => failure(&file, detail),
        other => other,
    })
}

fn build(file: &GgufFile, model: &str, config: &JsonFile) -> Result<(Tokenizer, Option<String>)> {
    let path = file.path();
    let words = Words::read(file)?;
    let (family, split) = family_of(file, model, config)?;
    let specials = Specials::read(path, config, family)?;
    check_ends(file, family, &specials)?;
    let (mut inner, own) = match family.vocabulary {
        Vocabulary::WordPiece => (of_words(&words, config, &specials)?, Vec::new()),
        Vocabulary::ByteBpe(_) => (byte_pairs(&words, split, config)?, words.own()),
        Vocabulary::SentencePiece(_) => pieces(&words, model == "t5", config, &specials)?,
    };
    family.template.check(path, &specials, &inner)?;
    specials.register(&mut inner, own, true)?;
    for (role, key) in ROLES {
        // The text of a token may be another's too, once marks of words are taken off.
        let (id, text) = (file.size(key)?, config.text(role)?.unwrap_or_default());
        let found = inner.token_to_id(text).map(|id| id as usize);
        if id.is_some() && id != found {
            let expected =
                format!("the id of `{text}`, which is {}", found.map_or("no token".into(), |id| id.to_string()));
            return Err(file.wrong(key, &expected));
        }
    }
    let template = family.template.processor(config, &specials, &inner)?;
    inner.with_post_processor(Some(template));
    Ok((inner, specials.role(Role::Pad).map(str::to_owned)))
}

/// Refuses flags that ask for other tokens around a text than the family's template has, or for one that there is not; and
/// a WordPiece vocabulary without the tokens that its template needs.
fn check_ends(file: &GgufFile, family: &Family, specials: &Specials) -> Result<()> {
    let name = |key: &str| format!("tokenizer.ggml.{key}");
    let [bos, eos, sep] = ["add_bos_token", "add_eos_token", "add_sep_token"].map(|key| file.flag(&name(key)));
    let (bos, eos, sep) = (bos?, eos?, sep?);
    let words = family.vocabulary == Vocabulary::WordPiece;
    let Template::Fixed { single, .. } = family.template else {
        return match [("add_bos_token", bos, Role::Bos), ("add_eos_token", eos, Role::Eos)]
            .into_iter()
            .find(|(_, flag, role)| *flag == Some(true) && specials.role(*role).is_none())
        {
            Some((key, ..)) => Err(file.wrong(&name(key), "false, for the file names no such token")),
            None => Ok(()),
        };
    };
    let begins = matches!(single.first(), Some(Part::Token(..)));
    if bos.is_some_and(|flag| flag != begins) {
        return Err(file.wrong(&name("add_bos_token"), &format!("{begins}, as this kind of tokenizer does")));
    }
    // The token after a WordPiece text counts as its end or as a separator.
    if eos == Some(false) && !(words && sep != Some(false)) {
        return Err(file.wrong(&name("add_eos_token"), "true, as this kind of tokenizer does"));
    }
    let needed = [(Role::Unk, "unknown"), (Role::Cls, "bos"), (Role::Sep, "seperator")];
    match needed.into_iter().find(|(role, _)| words && specials.role(*role).is_none()) {
        Some((_, key)) => Err(file.wrong(&name(&format!("{key}_token_id")), "the id of a token")),
        None => Ok(()),
    }
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
    let key = "tokenizer.ggml.precompiled_charsmap";
    let byte = |value: Value| match value {
        Value::Unsigned(byte) => u8::try_from(byte).ok(),
        // Bytes are signed in some files.
        Value::Signed(byte) => i8::try_from(byte).ok().map(i8::cast_unsigned),
        _ => None,
    };
    let charsmap = match file.get(key) {
        None => Vec::new(),
        Some(value) => {
            let bytes: Option<Vec<u8>> = value.as_array().and_then(|array| array.iter().map(byte).collect());
            bytes.ok_or_else(|| file.wrong(key, "an array of bytes"))?
        }
    };
    let parts = Parts {
        pieces: pieces.map(|((token, score), kind)| (*token, *score as f32, *kind)).collect(),
        unigram,
        charsmap,
        add_dummy_prefix: file.flag("tokenizer.ggml.add_space_prefix")?.unwrap_or(true),
        remove_extra_whitespaces: file.flag("tokenizer.ggml.remove_extra_whitespaces")?.unwrap_or(false),
    };
    sentencepiece::of_parts(parts, file.path(), config, specials)
}

/// WordPiece over the tokens, its rules for the text as the file states them or its words tell.
fn of_words(words: &Words, config: &JsonFile, specials: &Specials) -> Result<Tokenizer> {
    let tokens = words.tokens.iter().zip(&words.kinds).map(|(token, kind)| word_piece(token, *kind));
    let tokens: Vec<String> = tokens.collect();
    let lower = match words.file.flag("tokenizer.ggml.normalizer.lowercase")? {
        Some(lower) => lower,
        None => {
            let word = |token: &String| !token.starts_with('[') && token.chars().any(char::is_uppercase);
            !tokens.iter().zip(&words.kinds).any(|(token, kind)| *kind != CONTROL && word(token))
        }
    };
    let mut map = config.map.clone();
    map.insert("do_lower_case".into(), lower.into());
    if let Some(strips) = words.file.flag("tokenizer.ggml.normalizer.strip_accents")? {
        map.insert("strip_accents".into(), strips.into());
    }
    let config = JsonFile { file: config.file.clone(), map };
    wordpiece::of_tokens(tokens.into_iter(), words.file.path(), &config, specials)
}
