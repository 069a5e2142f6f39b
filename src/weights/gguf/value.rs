//! Values of GGUF metadata, read where they lie in the file.

use super::cursor::Cursor;

/// How a value is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Flag,
    Text,
    Array,
    U64,
    I64,
    F64,
}

impl Kind {
    /// By the number that files have for it.
    pub(super) fn of(number: u32) -> Option<Self> {
        use Kind::*;
        let kinds = [U8, I8, U16, I16, U32, I32, F32, Flag, Text, Array, U64, I64, F64];
        kinds.get(usize::try_from(number).ok()?).copied()
    }

    /// Bytes of a value, where all have the same number.
    pub(super) const fn size(self) -> Option<usize> {
        Some(match self {
            Self::U8 | Self::I8 | Self::Flag => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
            Self::Text | Self::Array => return None,
        })
    }
}

/// A value of the metadata. Whole numbers and floats of every width are widened, exactly.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value<'a> {
    /// A whole number that is not signed.
    Unsigned(u64),
    /// A whole number.
    Signed(i64),
    /// A binary32 or binary64.
    Float(f64),
    /// True or false.
    Flag(bool),
    /// A text; nothing says that it is UTF-8.
    Text(&'a [u8]),
    /// Values of one kind.
    Array(Array<'a>),
}

/// The values of an array, in the file.
#[derive(Clone, Copy)]
pub struct Array<'a> {
    kind: Kind,
    len: usize,
    start: Cursor<'a>,
}

impl<'a> Array<'a> {
    /// The number of values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The values, in order.
    pub fn iter(&self) -> impl Iterator<Item = Value<'a>> + use<'a> {
        let (kind, mut cursor) = (self.kind, self.start);
        (0..self.len).map_while(move |_| Value::read(kind, &mut cursor))
    }
}

impl std::fmt::Debug for Array<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} values of kind {:?}", self.len, self.kind)
    }
}

impl PartialEq for Array<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.kind == other.kind && self.iter().eq(other.iter())
    }
}

impl<'a> Value<'a> {
    /// The value at a place that was checked when the file was opened.
    pub(super) fn read(kind: Kind, cursor: &mut Cursor<'a>) -> Option<Self> {
        match kind {
            Kind::Text => cursor.text().ok().map(Self::Text),
            Kind::Array => {
                let kind = cursor.kind().ok()?;
                let len = cursor.count("elements", 1).ok()?;
                let start = *cursor;
                match kind.size() {
                    Some(size) => cursor.take(len * size).map(drop).ok()?,
                    None => (0..len).try_for_each(|_| cursor.skip(kind)).ok()?,
                }
                Some(Self::Array(Array { kind, len, start }))
            }
            _ => Self::number(kind, cursor.take(kind.size()?).ok()?),
        }
    }

    fn number(kind: Kind, bytes: &[u8]) -> Option<Self> {
        let mut wide = [0; 8];
        wide[..bytes.len()].copy_from_slice(bytes);
        let bits = u64::from_le_bytes(wide);
        Some(match kind {
            Kind::U8 | Kind::U16 | Kind::U32 | Kind::U64 => Self::Unsigned(bits),
            Kind::I8 => Self::Signed((bits as i8).into()),
            Kind::I16 => Self::Signed((bits as i16).into()),
            Kind::I32 => Self::Signed((bits as i32).into()),
            Kind::I64 => Self::Signed(bits as i64),
            Kind::F32 => Self::Float(f32::from_bits(bits as u32).into()),
            Kind::F64 => Self::Float(f64::from_bits(bits)),
            Kind::Flag => Self::Flag(bits != 0),
            Kind::Text | Kind::Array => return None,
        })
    }

    /// A size: a whole number of at least 0.
    pub fn as_size(&self) -> Option<usize> {
        match self {
            Self::Unsigned(n) => usize::try_from(*n).ok(),
            Self::Signed(n) => usize::try_from(*n).ok(),
            _ => None,
        }
    }

    /// A number of any kind, as the nearest binary64.
    pub fn as_number(&self) -> Option<f64> {
        match self {
            Self::Unsigned(n) => Some(*n as f64),
            Self::Signed(n) => Some(*n as f64),
            Self::Float(x) => Some(*x),
            _ => None,
        }
    }

    /// A text that is UTF-8.
    pub fn as_text(&self) -> Option<&'a str> {
        match self {
            Self::Text(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    /// True or false.
    pub fn as_flag(&self) -> Option<bool> {
        match self {
            Self::Flag(flag) => Some(*flag),
            _ => None,
        }
    }

    /// An array.
    pub fn as_array(&self) -> Option<Array<'a>> {
        match self {
            Self::Array(array) => Some(*array),
            _ => None,
        }
    }

    /// What it is, in words, for messages: long texts and arrays by their length.
    pub(crate) fn in_words(&self) -> String {
        match self {
            Self::Unsigned(n) => n.to_string(),
            Self::Signed(n) => n.to_string(),
            Self::Float(x) => x.to_string(),
            Self::Flag(flag) => flag.to_string(),
            Self::Text(text) if text.len() > 60 => format!("a text of {} bytes", text.len()),
            Self::Text(text) => format!("\"{}\"", text.escape_ascii()),
            Self::Array(array) => format!("an array of {}", array.len()),
        }
    }
}
