//! The text of a sequence while it grows.

use super::stops::StopTexts;
use crate::error::Result;
use crate::tokenizer::{TextTokenizer, TokenStream};

/// The text that new tokens add to a prompt: the decoded whole without the decoded prompt. Special tokens have no text.
pub(super) struct Tail<'a> {
    /// Gone once the text has ended.
    stream: Option<TokenStream<'a>>,
    /// Characters of the prompt that the stream has not returned yet.
    skip: usize,
    stops: StopTexts,
    text: String,
    /// Bytes of the text that the caller has.
    taken: usize,
}

impl<'a> Tail<'a> {
    pub(super) fn new(tokenizer: &'a TextTokenizer, prompt: &[u32], stops: Vec<String>) -> Result<Self> {
        let mut stream = tokenizer.stream(true);
        let mut returned = 0;
        for id in prompt {
            returned += stream.push(*id)?.map_or(0, |text| text.chars().count());
        }
        let skip = tokenizer.decode(prompt, true)?.chars().count().saturating_sub(returned);
        Ok(Self { stream: Some(stream), skip, stops: StopTexts::new(stops), text: String::new(), taken: 0 })
    }

    /// Adds a token. Gives the stop text that is complete with it; the text then has ended.
    pub(super) fn push(&mut self, id: u32) -> Result<Option<String>> {
        let piece = self.stream.as_mut().map_or(Ok(None), |stream| stream.push(id))?;
        Ok(piece.and_then(|piece| self.feed(piece)))
    }

    /// Ends the text. What was held back can complete a stop text.
    pub(super) fn finish(&mut self) -> Result<Option<String>> {
        let rest = self.stream.take().map_or(Ok(None), TokenStream::finish)?;
        let stop = rest.and_then(|rest| self.feed(rest));
        self.stops.finish(&mut self.text);
        Ok(stop)
    }

    fn feed(&mut self, piece: String) -> Option<String> {
        let cut = piece.char_indices().nth(self.skip).map_or(piece.len(), |(i, _)| i);
        self.skip -= piece[..cut].chars().count();
        let stop = self.stops.push(&piece[cut..], &mut self.text);
        if stop.is_some() {
            self.stream = None;
        }
        stop
    }

    /// The text that came since the last call.
    pub(super) fn take(&mut self) -> String {
        let fresh = self.text[self.taken..].to_string();
        self.taken = self.text.len();
        fresh
    }

    pub(super) fn into_text(self) -> String {
        self.text
    }
}
