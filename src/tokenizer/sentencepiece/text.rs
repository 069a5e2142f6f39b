//! What happens to a text before a SentencePiece model cuts it, and how tokens become text again.

use tokenizers::decoders::DecoderWrapper;
use tokenizers::decoders::byte_fallback::ByteFallback;
use tokenizers::decoders::fuse::Fuse;
use tokenizers::decoders::sequence::Sequence as DecoderSequence;
use tokenizers::decoders::strip::Strip as StripDecoder;
use tokenizers::normalizers::replace::ReplacePattern;
use tokenizers::normalizers::{Lowercase, NFKD, NormalizerWrapper, Prepend, Replace, Sequence, StripAccents};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};
use tokenizers::pre_tokenizers::punctuation::Punctuation;
use tokenizers::pre_tokenizers::sequence::Sequence as PreTokenizerSequence;
use tokenizers::{SplitDelimiterBehavior, Tokenizer};

use super::model::SpmModel;
use super::{UNIGRAM, charsmap};
use crate::error::Result;
use crate::modules::json::JsonFile;
use crate::tokenizer::family::Layout;

/// Stands for a space inside pieces.
const SPACE: char = '\u{2581}';

/// The choices that a file, a family and a configuration make together.
pub(super) struct Rules {
    layout: Layout,
    /// A space before the text: before each stretch between special tokens, or before the first one only.
    prefix: PrependScheme,
    /// Spaces at the ends go, several become one. Other white space at the end goes too, as in the converters.
    collapse: bool,
    /// Words are cut apart before the model sees them.
    words: bool,
    /// Characters without a piece become the tokens of their bytes.
    pub(super) byte_fallback: bool,
    lowercase: bool,
    strip_accents: bool,
    any_space: bool,
    punctuation: bool,
}

impl Rules {
    pub(super) fn new(spm: &SpmModel, layout: Layout, config: &JsonFile) -> Result<Self> {
        let flag = |key: &str, usual: bool| Ok::<_, crate::InferError>(config.flag(key)?.unwrap_or(usual));
        let albert = layout == Layout::Albert;
        let bytes = matches!(layout, Layout::Llama | Layout::Gemma);
        let legacy = !matches!(layout, Layout::T5 | Layout::Llama) || flag("legacy", true)?;
        let prefix = match flag("add_prefix_space", true)? && spm.normalizer.add_dummy_prefix {
            true if legacy => PrependScheme::Always,
            true => PrependScheme::First,
            false => PrependScheme::Never,
        };
        let any_space = albert && flag("remove_space", true)?;
        let collapse = spm.normalizer.remove_extra_whitespaces || any_space;
        let punctuation = layout == Layout::DebertaV2 && flag("split_by_punct", false)?;
        Ok(Self {
            layout,
            prefix,
            collapse,
            words: punctuation || collapse && spm.trainer.model_type == UNIGRAM,
            byte_fallback: bytes || spm.trainer.byte_fallback,
            lowercase: match layout {
                Layout::Albert => flag("do_lower_case", true)?,
                Layout::DebertaV2 => flag("do_lower_case", false)?,
                _ => false,
            },
            strip_accents: albert && !flag("keep_accents", false)?,
            any_space,
            punctuation,
        })
    }

    /// Gives `inner` its normaliser, pre-tokenizer and decoder.
    pub(super) fn apply(&self, spm: &SpmModel, inner: &mut Tokenizer) -> std::result::Result<(), String> {
        let mut steps = self.before_the_map()?;
        if !spm.normalizer.charsmap.is_empty() {
            steps.push(charsmap::normalizer(&spm.normalizer.charsmap)?.into());
        }
        if self.collapse {
            let ends = if self.layout == Layout::DebertaV2 { r"\A\s+|\s+\z" } else { r"\A +|\s+\z" };
            steps.push(replace(ReplacePattern::Regex(ends.to_owned()), "")?);
            steps.push(replace(ReplacePattern::Regex(" {2,}".to_owned()), " ")?);
        }
        let metaspace = Metaspace::new(SPACE, self.prefix, self.words && self.collapse);
        if self.words || self.prefix == PrependScheme::First {
            let first = self.punctuation.then(|| Punctuation::new(SplitDelimiterBehavior::Isolated).into());
            let both: Vec<PreTokenizerWrapper> = first.into_iter().chain([metaspace.clone().into()]).collect();
            inner.with_pre_tokenizer(Some(PreTokenizerSequence::new(both)));
        } else {
            if self.prefix == PrependScheme::Always {
                steps.push(Prepend::new(SPACE.to_string()).into());
            }
            steps.push(replace(ReplacePattern::String(" ".to_owned()), &SPACE.to_string())?);
        }
        if !steps.is_empty() {
            inner.with_normalizer(Some(Sequence::new(steps)));
        }
        inner.with_decoder(Some(match self.words && !self.byte_fallback {
            true => metaspace.into(),
            false => self.decoder()?,
        }));
        Ok(())
    }

    /// The family's own steps before the file's character map.
    fn before_the_map(&self) -> std::result::Result<Vec<NormalizerWrapper>, String> {
        let mut steps = Vec::new();
        if self.any_space {
            steps.push(replace(ReplacePattern::Regex(r"\s+".to_owned()), " ")?);
        }
        if self.layout == Layout::Albert {
            for quotes in ["``", "''"] {
                steps.push(replace(ReplacePattern::String(quotes.to_owned()), "\"")?);
            }
        }
        if self.strip_accents {
            steps.extend([NFKD.into(), StripAccents.into()]);
        }
        if self.lowercase {
            steps.push(Lowercase.into());
        }
        Ok(steps)
    }

    fn decoder(&self) -> std::result::Result<DecoderWrapper, String> {
        let space = ReplacePattern::String(SPACE.to_string());
        let space = Replace::new(space, " ").map_err(|error| error.to_string())?;
        let mut steps: Vec<DecoderWrapper> = vec![space.into(), ByteFallback::new().into(), Fuse::new().into()];
        if self.prefix != PrependScheme::Never {
            steps.push(StripDecoder::new(' ', 1, 0).into());
        }
        Ok(DecoderSequence::new(steps).into())
    }
}

fn replace(pattern: ReplacePattern, content: &str) -> std::result::Result<NormalizerWrapper, String> {
    Replace::new(pattern, content).map(NormalizerWrapper::from).map_err(|error| error.to_string())
}
