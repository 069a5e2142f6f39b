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
        let inputs: Vec<String> = self.inputs.iter().map(|(name, value)| format!("{name} {}", words(value))).collect();
        if inputs.is_empty() { Ok(()) } else { write!(f, " ({})", inputs.join(", ")) }
    }
}

fn words(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "unknown".to_string(),
        other => other.to_string(),
    }
}
