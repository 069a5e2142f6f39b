//! A SentencePiece `.model` file: the few fields of it that tokenizing needs, checked.

use std::path::Path;

use super::Parts;
use super::wire::{Fields, Wire};
use crate::error::{InferError, Result};
use crate::tokenizer::failure;

/// Longest piece, in characters: no trainer of SentencePiece makes longer ones.
const LONGEST_PIECE: usize = 512;

/// The fields of a `.model` file that decide about ids.
#[derive(Debug, Default)]
pub(super) struct SpmModel {
    pub(super) pieces: Vec<Piece>,
    pub(super) trainer: Trainer,
    pub(super) normalizer: Normalizer,
}

/// An entry of the vocabulary; its id is its index.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) text: String,
    pub(super) score: f32,
    pub(super) kind: Kind,
}

/// What a piece stands for. Bytes and unused pieces are treated as normal ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Normal,
    Unknown,
    Control,
    UserDefined,
}

/// How the vocabulary was trained.
#[derive(Debug)]
pub(super) struct Trainer {
    /// 1 Unigram, 2 BPE, 3 words, 4 characters.
    pub(super) model_type: u64,
    pub(super) whitespace_as_suffix: bool,
    pub(super) byte_fallback: bool,
    /// Ids of the unknown, beginning, end and padding pieces; negative: none.
    pub(super) unk_id: i64,
    pub(super) bos_id: i64,
    pub(super) eos_id: i64,
    pub(super) pad_id: i64,
}

/// What happens to a text before it is cut into pieces.
#[derive(Debug)]
pub(super) struct Normalizer {
    pub(super) name: String,
    pub(super) charsmap: Vec<u8>,
    pub(super) add_dummy_prefix: bool,
    pub(super) remove_extra_whitespaces: bool,
    pub(super) escape_whitespaces: bool,
}

impl Default for Trainer {
    fn default() -> Self {
        let (unk_id, bos_id, eos_id, pad_id) = (0, 1, 2, -1);
        Self { model_type: 1, whitespace_as_suffix: false, byte_fallback: false, unk_id, bos_id, eos_id, pad_id }
    }
}

impl Default for Normalizer {
    fn default() -> Self {
        let (name, charsmap) = (String::new(), Vec::new());
        Self { name, charsmap, add_dummy_prefix: true, remove_extra_whitespaces: true, escape_whitespaces: true }
    }
}

impl SpmModel {
    /// Reads and checks a file: pieces are neither empty, nor too long, nor equal; scores are finite; ids lie inside.
    pub(super) fn read(file: &Path) -> Result<Self> {
        let bytes = std::fs::read(file).map_err(|error| InferError::io(file, error))?;
        Self::parse(&bytes).and_then(Self::checked).map_err(|detail| failure(file, detail))
    }

    /// A model of these parts.
    pub(super) fn of_parts(parts: Parts) -> Wire<Self> {
        let piece = |(id, (text, score, kind)): (usize, &(&str, f32, u64))| {
            let kind = Kind::of(*kind).ok_or_else(|| format!("token {id} has the unknown type {kind}"))?;
            Piece { text: text.to_string(), score: *score, kind }.checked(id)
        };
        let pieces = parts.pieces.iter().enumerate().map(piece).collect::<Wire<Vec<_>>>()?;
        let unk = pieces.iter().position(|piece| piece.kind == Kind::Unknown);
        let trainer = Trainer {
            model_type: if parts.unigram { super::UNIGRAM } else { super::BYTE_PAIRS },
            byte_fallback: parts.pieces.iter().any(|(_, _, kind)| *kind == 6),
            unk_id: unk.map_or(-1, |id| id as i64),
            // Where other roles' tokens are is not the model's affair.
            bos_id: -1,
            eos_id: -1,
            pad_id: -1,
            ..Trainer::default()
        };
        let normalizer = Normalizer {
            charsmap: parts.charsmap,
            add_dummy_prefix: parts.add_dummy_prefix,
            remove_extra_whitespaces: parts.remove_extra_whitespaces,
            ..Normalizer::default()
        };
        Self { pieces, trainer, normalizer }.checked()
    }

    fn parse(bytes: &[u8]) -> Wire<Self> {
        let mut model = Self::default();
        for field in Fields(bytes) {
            match field? {
                (1, value) => model.pieces.push(Piece::parse(value.bytes()?, model.pieces.len())?),
                (2, value) => model.trainer.merge(value.bytes()?)?,
                (3, value) => model.normalizer.merge(value.bytes()?)?,
                _ => {}
            }
        }
        Ok(model)
    }

    fn checked(self) -> Wire<Self> {
        if self.pieces.is_empty() {
            return Err("no pieces: not a SentencePiece model".to_owned());
        }
        let count = self.pieces.len();
        let mut unknown = (0..).zip(&self.pieces).filter(|(_, piece)| piece.kind == Kind::Unknown).map(|(id, _)| id);
        if (unknown.next(), unknown.next()) != (Some(self.trainer.unk_id), None) {
            let id = self.trainer.unk_id;
            return Err(format!("`unk_id` is {id}, which is not the one piece marked as unknown of {count} pieces"));
        }
        let trainer = &self.trainer;
        for (name, id) in [("bos_id", trainer.bos_id), ("eos_id", trainer.eos_id), ("pad_id", trainer.pad_id)] {
            if usize::try_from(id).is_ok_and(|id| id >= count) {
                return Err(format!("`{name}` is {id}, but there are {count} pieces"));
            }
        }
        Ok(self)
    }
}

impl Piece {
    fn parse(bytes: &[u8], id: usize) -> Wire<Self> {
        let mut piece = Self { text: String::new(), score: 0.0, kind: Kind::Normal };
        for field in Fields(bytes) {
            match field? {
                (1, value) => piece.text = value.text().map_err(|detail| format!("piece {id}: {detail}"))?,
                (2, value) => piece.score = value.float()?,
                (3, value) => piece.kind = Kind::of(value.number()?).ok_or("a piece of unknown type")?,
                _ => {}
            }
        }
        piece.checked(id)
    }

    fn checked(self, id: usize) -> Wire<Self> {
        let fault = match &self {
            Self { text, .. } if text.is_empty() => "is empty".to_owned(),
            Self { text, .. } if text.chars().count() > LONGEST_PIECE => {
                format!("is longer than {LONGEST_PIECE} characters")
            }
            Self { score, .. } if !score.is_finite() => format!("has the score {score}"),
            _ => return Ok(self),
        };
        Err(format!("piece {id} {fault}"))
    }
}

impl Kind {
    fn of(number: u64) -> Option<Self> {
        Some(match number {
            1 | 5 | 6 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            _ => return None,
        })
    }
}

impl Trainer {
    fn merge(&mut self, bytes: &[u8]) -> Wire<()> {
        for field in Fields(bytes) {
            match field? {
                (3, value) => self.model_type = value.number()?,
                (24, value) => self.whitespace_as_suffix = value.number()? != 0,
                (35, value) => self.byte_fallback = value.number()? != 0,
                (40, value) => self.unk_id = value.number()? as i64,
                (41, value) => self.bos_id = value.number()? as i64,
                (42, value) => self.eos_id = value.number()? as i64,
                (43, value) => self.pad_id = value.number()? as i64,
                _ => {}
            }
        }
        Ok(())
    }
}

impl Normalizer {
    fn merge(&mut self, bytes: &[u8]) -> Wire<()> {
        for field in Fields(bytes) {
            match field? {
                (1, value) => self.name = value.text()?,
                (2, value) => self.charsmap = value.bytes()?.to_vec(),
                (3, value) => self.add_dummy_prefix = value.number()? != 0,
                (4, value) => self.remove_extra_whitespaces = value.number()? != 0,
                (5, value) => self.escape_whitespaces = value.number()? != 0,
                _ => {}
            }
        }
        Ok(())
    }
}
