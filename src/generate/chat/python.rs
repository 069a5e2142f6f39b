//! Values as Python's `json.dumps` writes them.

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

/// The arguments of `json.dumps`.
pub(super) struct Layout {
    /// Characters beyond ASCII are escaped.
    pub ascii: bool,
    /// Keys are sorted.
    pub sorted: bool,
    /// One entry a line, this before it once a level.
    pub indent: Option<String>,
    /// Between entries, and between a key and its value.
    pub separators: [String; 2],
}

impl Layout {
    pub(super) fn dump(&self, value: &Value) -> Result<String, Error> {
        let mut out = String::new();
        self.write(value, 0, &mut out)?;
        Ok(out)
    }

    fn write(&self, value: &Value, level: usize, out: &mut String) -> Result<(), Error> {
        if level > 200 {
            return Err(Error::new(ErrorKind::BadSerialization, "values nest too deeply for JSON"));
        }
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number if value.is_integer() => out.push_str(&value.to_string()),
            ValueKind::Number => out.push_str(&float(f64::try_from(value.clone())?)),
            ValueKind::String => self.string(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.entries(['[', ']'], &items, level, out, |item, out| self.write(item, level + 1, out))?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sorted {
                    keys.sort();
                }
                self.entries(['{', '}'], &keys, level, out, |key, out| {
                    self.string(key.as_str().unwrap_or(&key.to_string()), out);
                    out.push_str(&self.separators[1]);
                    self.write(&value.get_item(key)?, level + 1, out)
                })?;
            }
            other => {
                let detail = format!("tojson: a value of type {other} has no JSON");
                return Err(Error::new(ErrorKind::BadSerialization, detail));
            }
        }
        Ok(())
    }

    fn entries(
        &self,
        brackets: [char; 2],
        items: &[Value],
        level: usize,
        out: &mut String,
        mut write: impl FnMut(&Value, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let line = |level: usize, out: &mut String| {
            if let Some(indent) = self.indent.as_ref().filter(|_| !items.is_empty()) {
                out.push('\n');
                out.push_str(&indent.repeat(level));
            }
        };
        out.push(brackets[0]);
        for (i, item) in items.iter().enumerate() {
            if i > 0 {
                out.push_str(&self.separators[0]);
            }
            line(level + 1, out);
            write(item, out)?;
        }
        line(level, out);
        out.push(brackets[1]);
        Ok(())
    }

    fn string(&self, text: &str, out: &mut String) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if (c as u32) < 0x20 || (self.ascii && !(' '..='~').contains(&c)) => {
                    let mut units = [0; 2];
                    c.encode_utf16(&mut units).iter().for_each(|unit| out.push_str(&format!("\\u{unit:04x}")));
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

/// `repr` of a float: the shortest digits that give it back, with an exponent below -4 and from 16 on.
fn float(x: f64) -> String {
    if !x.is_finite() {
        return if x.is_nan() {
            "NaN"
        } else if x > 0.0 {
            "Infinity"
        } else {
            "-Infinity"
        }
        .to_string();
    }
    let scientific = format!("{x:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        return format!("{x:?}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

#[cfg(test)]
mod tests {
    use super::float;

    /// Values of Python 3.11's `repr`.
    #[test]
    fn floats_are_written_as_in_python() {
        for (x, expected) in [
            (0.1, "0.1"),
            (1.0, "1.0"),
            (-0.0, "-0.0"),
            (1e16, "1e+16"),
            (123456789012345680.0, "1.2345678901234568e+17"),
            (9999999999999998.0, "9999999999999998.0"),
            (0.0001, "0.0001"),
            (0.00001234, "1.234e-05"),
            (1e300, "1e+300"),
            (5e-324, "5e-324"),
            (f64::INFINITY, "Infinity"),
        ] {
            assert_eq!(float(x), expected);
        }
    }
}
