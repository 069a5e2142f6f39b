//! [`Resolved`]: a value that says why it is what it is.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A value, the reason for it, and what it was made from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Resolved<T> {
    /// The value.
    pub value: T,
    /// Why, in words.
    pub reason: String,
    /// What it was made from, by name.
    pub inputs: BTreeMap<String, Value>,
}

impl<T> Resolved<T> {
    /// A value with its reason.
    pub fn new(value: T, reason: impl Into<String>) -> Self {
        Self { value, reason: reason.into(), inputs: BTreeMap::new() }
    }

    /// Names something it was made from.
    pub fn from(mut self, name: &str, input: impl Into<Value>) -> Self {
        self.inputs.insert(name.to_string(), input.into());
        self
    }
}

impl<T> fmt::Display for Resolved<T> {
    /// The reason and the inputs, without the value: who prints it knows its unit.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)?;
        let known = self.inputs.iter().filter(|(_, value)| !value.is_null());
        let inputs: Vec<String> = known.map(|(name, value)| words(name, value)).collect();
        if inputs.is_empty() { Ok(()) } else { write!(f, " ({})", inputs.join(", ")) }
    }
}

/// A name and a value for people; a name that ends in `_bytes` is one of a size.
fn words(name: &str, value: &Value) -> String {
    match (name.strip_suffix("_bytes"), value.as_u64(), value.as_str()) {
        (Some(name), Some(bytes), _) => format!("{} {}", name.replace('_', " "), bytes_in_words(bytes)),
        (_, _, Some(text)) => format!("{} {text}", name.replace('_', " ")),
        _ => format!("{} {value}", name.replace('_', " ")),
    }
}

/// A number of bytes for people: `512 bytes`, `1.5 KiB`, `98.2 MiB`, `2.75 GiB`.
pub fn bytes_in_words(bytes: u64) -> String {
    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;
    match bytes {
        0..KIB => format!("{bytes} bytes"),
        KIB..MIB => format!("{:.1} KiB", bytes as f64 / KIB as f64),
        MIB..GIB => format!("{:.1} MiB", bytes as f64 / MIB as f64),
        _ => format!("{:.2} GiB", bytes as f64 / GIB as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_for_people() {
        for (bytes, words) in [
            (0, "0 bytes"),
            (1023, "1023 bytes"),
            (1536, "1.5 KiB"),
            (1 << 20, "1.0 MiB"),
            ((5 << 30) / 2, "2.50 GiB"),
            (u64::MAX, "17179869184.00 GiB"),
        ] {
            assert_eq!(bytes_in_words(bytes), words);
        }
    }

    #[test]
    fn a_reason_names_what_is_known_of_its_inputs() {
        let value =
            Resolved::new(1, "why").from("cpu_quota", 1.5).from("total_bytes", 2048).from("limit_bytes", Value::Null);
        assert_eq!(value.to_string(), "why (cpu quota 1.5, total 2.0 KiB)");
        assert_eq!(Resolved::new(1, "why").to_string(), "why");
    }
}
