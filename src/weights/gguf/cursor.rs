//! Reading a GGUF header: every step stays inside the file.

use super::value::Kind;

/// Why a header is refused; the file's name comes before it.
pub(super) type Step<T> = Result<T, String>;

/// Arrays of arrays that are followed.
const DEPTH: usize = 4;

/// A place in a file.
#[derive(Clone, Copy)]
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    pub(super) at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8], at: usize) -> Self {
        Self { bytes, at }
    }

    fn left(&self) -> usize {
        self.bytes.len().saturating_sub(self.at)
    }

    pub(super) fn take(&mut self, count: usize) -> Step<&'a [u8]> {
        let end = self.at.checked_add(count).filter(|end| *end <= self.bytes.len());
        let Some(end) = end else {
            let (at, left) = (self.at, self.left());
            return Err(format!("expected {count} bytes at offset {at}, found {left}; the file may be truncated"));
        };
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Step<[u8; N]> {
        let mut bytes = [0; N];
        bytes.copy_from_slice(self.take(N)?);
        Ok(bytes)
    }

    pub(super) fn u32(&mut self) -> Step<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Step<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// A number of things that take at least `least` bytes each: more than the rest of the file has room for is an error.
    pub(super) fn count(&mut self, what: &str, least: usize) -> Step<usize> {
        let (at, count) = (self.at, self.u64()?);
        let room = self.left() / least;
        usize::try_from(count).ok().filter(|count| *count <= room).ok_or_else(|| {
            format!("{count} {what} at offset {at} do not fit into the {} bytes that follow", self.left())
        })
    }

    /// The bytes of a text.
    pub(super) fn text(&mut self) -> Step<&'a [u8]> {
        let length = self.count("bytes of a text", 1)?;
        self.take(length)
    }

    /// A text that has to be UTF-8.
    pub(super) fn name(&mut self, what: &str) -> Step<&'a str> {
        let at = self.at;
        std::str::from_utf8(self.text()?).map_err(|_| format!("the {what} at offset {at} is not UTF-8"))
    }

    pub(super) fn kind(&mut self) -> Step<Kind> {
        let (at, number) = (self.at, self.u32()?);
        Kind::of(number).ok_or_else(|| format!("expected a type of value from 0 to 12 at offset {at}, found {number}"))
    }

    /// Passes over a value of `kind`, checking what it holds.
    pub(super) fn skip(&mut self, kind: Kind) -> Step<()> {
        self.skip_nested(kind, DEPTH)
    }

    fn skip_nested(&mut self, kind: Kind, depth: usize) -> Step<()> {
        match kind.size() {
            Some(size) => {
                let at = self.at;
                let value = self.take(size)?;
                check_flag(kind, value, at)
            }
            None if kind == Kind::Text => self.text().map(drop),
            None => {
                let element = self.kind()?;
                if depth == 0 {
                    return Err(format!("arrays of arrays deeper than {DEPTH} at offset {}", self.at));
                }
                self.skip_elements(element, depth - 1)
            }
        }
    }

    fn skip_elements(&mut self, element: Kind, depth: usize) -> Step<()> {
        // Lengths of texts and arrays take 8 bytes, the latter's types 4 more.
        let least = element.size().unwrap_or(if element == Kind::Text { 8 } else { 12 });
        let count = self.count("elements of an array", least)?;
        match element.size() {
            Some(size) => {
                let at = self.at;
                let values = self.take(count * size)?;
                check_flag(element, values, at)
            }
            None => (0..count).try_for_each(|_| self.skip_nested(element, depth)),
        }
    }
}

/// Flags are 0 or 1.
fn check_flag(kind: Kind, bytes: &[u8], at: usize) -> Step<()> {
    match bytes.iter().position(|b| *b > 1).filter(|_| kind == Kind::Flag) {
        Some(i) => Err(format!("expected 0 or 1 at offset {}, found {}", at + i, bytes[i])),
        None => Ok(()),
    }
}
