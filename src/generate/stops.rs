//! Stop texts, found across the borders of the pieces that a text comes in.

/// Finds the first stop text in a text that comes piece by piece. How it is cut into pieces changes nothing.
pub(super) struct StopTexts {
    stops: Vec<String>,
    /// The end of the text so far that may be the beginning of a stop text.
    held: String,
}

impl StopTexts {
    pub(super) fn new(stops: Vec<String>) -> Self {
        Self { stops, held: String::new() }
    }

    /// Adds a piece; what certainly stands before any stop text goes to `out`. Gives the stop text that is now
    /// complete: the one whose end comes first, of several that end there the longest. The text ends before it.
    pub(super) fn push(&mut self, piece: &str, out: &mut String) -> Option<String> {
        let before = self.held.len();
        self.held.push_str(piece);
        let ends = self.held.char_indices().map(|(i, c)| i + c.len_utf8()).skip_while(|end| *end <= before);
        for end in ends {
            let found = self.stops.iter().filter(|stop| self.held[..end].ends_with(stop.as_str()));
            if let Some(stop) = found.max_by_key(|stop| stop.len()).cloned() {
                out.push_str(&self.held[..end - stop.len()]);
                self.held.clear();
                return Some(stop);
            }
        }
        let safe = self.held.len() - self.begun();
        out.push_str(&self.held[..safe]);
        self.held.drain(..safe);
        None
    }

    /// No piece follows: what is held back belongs to the text.
    pub(super) fn finish(&mut self, out: &mut String) {
        out.push_str(&self.held);
        self.held.clear();
    }

    /// Length of the longest end of the text that begins a stop text.
    fn begun(&self) -> usize {
        let begins = |tail: &str| self.stops.iter().any(|stop| stop.starts_with(tail));
        self.held.char_indices().find(|(i, _)| begins(&self.held[*i..])).map_or(0, |(i, _)| self.held.len() - i)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text before the first stop text and that stop text, by trying every end of the whole text.
    fn plain(text: &str, stops: &[String]) -> (String, Option<String>) {
        let ends = text.char_indices().map(|(i, c)| i + c.len_utf8());
        let at = |end: usize| {
            let here = stops.iter().filter(|s| text[..end].ends_with(s.as_str())).max_by_key(|s| s.len())?;
            Some((text[..end - here.len()].to_string(), Some(here.clone())))
        };
        ends.filter_map(at).next().unwrap_or((text.to_string(), None))
    }

    #[test]
    fn every_way_to_cut_a_text_gives_the_same() {
        let stops = ["\n\n", "ab", "abc", "bcd", "é!", "</s>"].map(str::to_string);
        for text in
            ["xaby", "aabcd", "abc", "\n\nx", "x\n", "a\na\n\nb", "caf\u{e9}\u{e9}!", "<</s></", "</s", "bcbcd", ""]
        {
            let letters: Vec<char> = text.chars().collect();
            for cuts in 0..1u32 << letters.len() {
                let (mut matcher, mut out, mut piece, mut found) =
                    (StopTexts::new(stops.to_vec()), String::new(), String::new(), None);
                for (i, c) in letters.iter().enumerate() {
                    piece.push(*c);
                    if cuts >> i & 1 == 1 || i + 1 == letters.len() {
                        found = matcher.push(&std::mem::take(&mut piece), &mut out);
                    }
                    if found.is_some() {
                        break;
                    }
                }
                if found.is_none() {
                    matcher.finish(&mut out);
                }
                assert_eq!((out, found), plain(text, &stops), "{text:?} cut as {cuts:b}");
            }
        }
    }
}
