//! The wire format of protocol buffers: numbered fields, each a number, four or eight bytes, or a length and as many
//! bytes. Nothing is allocated for a length before its bytes are there.

/// A result whose error is the message without the file.
pub(super) type Wire<T> = std::result::Result<T, String>;

const OTHER_TYPE: &str = "a field has another type than SentencePiece gives it";

/// The value of a field, by its wire type.
pub(super) enum Value<'a> {
    Number(u64),
    Fixed32([u8; 4]),
    Fixed64,
    Bytes(&'a [u8]),
}

impl<'a> Value<'a> {
    pub(super) fn number(&self) -> Wire<u64> {
        match self {
            Self::Number(number) => Ok(*number),
            _ => Err(OTHER_TYPE.to_owned()),
        }
    }

    pub(super) fn float(&self) -> Wire<f32> {
        match self {
            Self::Fixed32(bytes) => Ok(f32::from_le_bytes(*bytes)),
            _ => Err(OTHER_TYPE.to_owned()),
        }
    }

    pub(super) fn bytes(&self) -> Wire<&'a [u8]> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            _ => Err(OTHER_TYPE.to_owned()),
        }
    }

    pub(super) fn text(&self) -> Wire<String> {
        String::from_utf8(self.bytes()?.to_vec()).map_err(|_| "a text is not UTF-8".to_owned())
    }
}

/// The fields of a message, one after the other; ends after the first error.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Iterator for Fields<'a> {
    type Item = Wire<(u64, Value<'a>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}

impl<'a> Fields<'a> {
    fn field(&mut self) -> Wire<(u64, Value<'a>)> {
        let key = self.varint()?;
        let value = match key & 7 {
            0 => Value::Number(self.varint()?),
            1 => self.take(8).map(|_| Value::Fixed64)?,
            2 => {
                let length = self.varint()?;
                Value::Bytes(self.take(length)?)
            }
            5 => Value::Fixed32(self.take(4)?.try_into().map_err(|_| "truncated")?),
            other => return Err(format!("not a SentencePiece model: wire type {other}")),
        };
        Ok((key >> 3, value))
    }

    fn varint(&mut self) -> Wire<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err("not a SentencePiece model: a number of more than ten bytes".to_owned())
    }

    fn take(&mut self, length: u64) -> Wire<&'a [u8]> {
        let (head, tail) = usize::try_from(length)
            .ok()
            .and_then(|length| self.0.split_at_checked(length))
            .ok_or_else(|| format!("truncated: {length} bytes expected, {} left", self.0.len()))?;
        self.0 = tail;
        Ok(head)
    }
}
