//! Which id each piece has in a model: as in the file, or shifted by the tokens that a family puts first or last.

use super::Scored;
use super::model::{Kind, SpmModel};
use crate::error::Result;
use crate::modules::json::JsonFile;
use crate::tokenizer::family::Layout;
use crate::tokenizer::special::{Role, Specials};

/// Most sentinels that a T5 configuration may ask for.
const MOST_EXTRA_IDS: u64 = 1 << 16;

/// The pieces of a model by id.
pub(super) fn of_layout(
    spm: &SpmModel,
    layout: Layout,
    extra_ids: usize,
    specials: &Specials,
) -> std::result::Result<Scored, String> {
    let role = |role, usual: &str| (specials.role(role).unwrap_or(usual).to_owned(), 0.0);
    let (mut vocab, skipped) = match layout {
        Layout::XlmRoberta => {
            let first = [(Role::Bos, "<s>"), (Role::Pad, "<pad>"), (Role::Eos, "</s>"), (Role::Unk, "<unk>")];
            (first.map(|(name, usual)| role(name, usual)).to_vec(), 3)
        }
        Layout::Camembert => {
            let fixed = |text: &str, score| (text.to_owned(), score);
            let (pad, unk) = (role(Role::Pad, "<pad>"), role(Role::Unk, "<unk>"));
            let unused = fixed("<unk>NOTUSED", -100.0);
            (vec![fixed("<s>NOTUSED", 0.0), pad, fixed("</s>NOTUSED", 0.0), unk, unused], 1)
        }
        Layout::Gemma => {
            let first = [(Role::Pad, "<pad>"), (Role::Eos, "<eos>"), (Role::Bos, "<bos>")];
            (first.map(|(name, usual)| role(name, usual)).to_vec(), 3)
        }
        Layout::T5 | Layout::Albert | Layout::DebertaV2 | Layout::Llama => (Vec::new(), 0),
    };
    let (first, rest) = spm.pieces.split_at_checked(skipped).ok_or("too few pieces for this family")?;
    if let Some((id, piece)) = (0..).zip(first).find(|(_, piece)| piece.kind == Kind::Normal) {
        return Err(format!("piece {id} is `{}`, where this family has a special token", piece.text));
    }
    let unknown_first = matches!(layout, Layout::XlmRoberta | Layout::Camembert);
    if first.iter().any(|piece| piece.kind == Kind::Unknown) != unknown_first {
        let place = if unknown_first { "among" } else { "after" };
        return Err(format!("`unk_id` is {}, which this family has {place} the first {skipped}", spm.trainer.unk_id));
    }
    let score = |text: &str| if layout == Layout::Albert && ends_in_digit_and_comma(text) { -100.0 } else { 0.0 };
    vocab.extend(rest.iter().map(|piece| (piece.text.clone(), f64::from(piece.score) + score(&piece.text))));
    match layout {
        Layout::XlmRoberta | Layout::Camembert => vocab.push(role(Role::Mask, "<mask>")),
        Layout::T5 => vocab.extend((0..extra_ids).rev().map(|index| (sentinel(index), 0.0))),
        Layout::Gemma => put_tab_in_place_of_its_byte(&mut vocab),
        Layout::Albert | Layout::DebertaV2 | Layout::Llama => {}
    }
    Ok(vocab)
}

/// The id of the unknown token in what [`of_layout`] makes.
pub(super) fn unk_id(spm: &SpmModel, layout: Layout) -> usize {
    match layout {
        Layout::XlmRoberta | Layout::Camembert => 3,
        Layout::T5 | Layout::Albert | Layout::DebertaV2 | Layout::Llama | Layout::Gemma => {
            usize::try_from(spm.trainer.unk_id).unwrap_or_default()
        }
    }
}

/// `extra_ids` of a T5 configuration.
pub(super) fn extra_ids(config: &JsonFile) -> Result<usize> {
    let Some(value) = config.get("extra_ids") else { return Ok(100) };
    let number = value.as_u64().filter(|number| *number <= MOST_EXTRA_IDS);
    number.map(|number| number as usize).ok_or_else(|| config.wrong("extra_ids", "a number up to 65536", value))
}

/// T5's token for a gap in a text.
pub(super) fn sentinel(index: usize) -> String {
    format!("<extra_id_{index}>")
}

/// ALBERT never uses such pieces: a number and the comma after it are tokens of their own.
fn ends_in_digit_and_comma(text: &str) -> bool {
    text.strip_suffix(',').and_then(|number| number.chars().next_back()).is_some_and(char::is_numeric)
}

fn put_tab_in_place_of_its_byte(vocab: &mut Scored) {
    if !vocab.iter().any(|(text, _)| text == "\t")
        && let Some(byte) = vocab.iter_mut().find(|(text, _)| text == "<0x09>")
    {
        *byte = ("\t".to_owned(), 0.0);
    }
}
