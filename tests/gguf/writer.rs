//! GGUF files made by hand, right or wrong.

use std::collections::BTreeMap;
use std::path::Path;

use kin_infer::weights::Checkpoint;
use kin_infer::weights::gguf::Value;

/// The numbers of value types.
pub const U32: u32 = 4;
pub const I32: u32 = 5;
pub const F32: u32 = 6;
pub const BOOL: u32 = 7;
pub const TEXT: u32 = 8;
pub const ARRAY: u32 = 9;
pub const U64: u32 = 10;
pub const I64: u32 = 11;
pub const F64: u32 = 12;

/// Metadata and tensor descriptions, as bytes.
#[derive(Clone, Default)]
pub struct Gguf {
    pub version: u32,
    pub pairs: Vec<Vec<u8>>,
    pub infos: Vec<Vec<u8>>,
    pub data: Vec<u8>,
    /// Instead of the real numbers.
    pub counts: Option<(u64, u64)>,
}

pub fn text(text: &str) -> Vec<u8> {
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend(text.as_bytes());
    bytes
}

impl Gguf {
    /// With an architecture.
    pub fn new(architecture: &str) -> Self {
        let mut file = Self { version: 3, ..Self::default() };
        file.pair("general.architecture", TEXT, &text(architecture));
        file
    }

    pub fn pair(&mut self, key: &str, kind: u32, value: &[u8]) -> &mut Self {
        let mut bytes = text(key);
        bytes.extend(kind.to_le_bytes());
        bytes.extend(value);
        self.pairs.push(bytes);
        self
    }

    pub fn size(&mut self, key: &str, value: u32) -> &mut Self {
        self.pair(key, U32, &value.to_le_bytes())
    }

    pub fn number(&mut self, key: &str, value: f32) -> &mut Self {
        self.pair(key, F32, &value.to_le_bytes())
    }

    pub fn texts(&mut self, key: &str, values: &[&str]) -> &mut Self {
        let mut bytes = TEXT.to_le_bytes().to_vec();
        bytes.extend((values.len() as u64).to_le_bytes());
        values.iter().for_each(|v| bytes.extend(text(v)));
        self.pair(key, ARRAY, &bytes)
    }

    /// A description; dimensions from the innermost.
    pub fn info(&mut self, name: &str, dimensions: &[u64], kind: u32, offset: u64) -> &mut Self {
        let mut bytes = text(name);
        bytes.extend((dimensions.len() as u32).to_le_bytes());
        dimensions.iter().for_each(|d| bytes.extend(d.to_le_bytes()));
        bytes.extend(kind.to_le_bytes());
        bytes.extend(offset.to_le_bytes());
        self.infos.push(bytes);
        self
    }

    /// A tensor of binary32 values after the others.
    pub fn floats(&mut self, name: &str, dimensions: &[u64], values: &[f32]) -> &mut Self {
        self.data.resize(self.data.len().next_multiple_of(32), 0);
        self.info(name, dimensions, 0, self.data.len() as u64);
        values.iter().for_each(|v| self.data.extend(v.to_le_bytes()));
        self
    }

    /// The header, without the data.
    pub fn header(&self) -> Vec<u8> {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(self.version.to_le_bytes());
        let (tensors, pairs) = self.counts.unwrap_or((self.infos.len() as u64, self.pairs.len() as u64));
        bytes.extend(tensors.to_le_bytes());
        bytes.extend(pairs.to_le_bytes());
        self.pairs.iter().chain(&self.infos).for_each(|part| bytes.extend(part));
        bytes
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.header();
        bytes.resize(bytes.len().next_multiple_of(32), 0);
        bytes.extend(&self.data);
        bytes
    }
}

/// The metadata and the tensors (of binary32) of a file, to be written with changes.
pub struct Changed {
    pairs: BTreeMap<String, (u32, Vec<u8>)>,
    tensors: BTreeMap<String, (Vec<usize>, Vec<f32>)>,
}

impl Changed {
    pub fn of(path: &Path) -> Self {
        let checkpoint = Checkpoint::open_gguf(path).unwrap();
        let file = checkpoint.gguf().unwrap();
        let pairs = file.keys().map(|key| (key.to_string(), encoded(file.get(key).unwrap()))).collect();
        let tensor = |name: &str| {
            let tensor = checkpoint.get(name).unwrap();
            (name.to_string(), (tensor.shape().to_vec(), tensor.to_f32().unwrap()))
        };
        let tensors = checkpoint.names().map(tensor).collect();
        Self { pairs, tensors }
    }

    /// A value as bytes.
    pub fn set(&mut self, key: &str, kind: u32, value: &[u8]) -> &mut Self {
        self.pairs.insert(key.to_string(), (kind, value.to_vec()));
        self
    }

    pub fn size(&mut self, key: &str, value: u32) -> &mut Self {
        self.set(key, U32, &value.to_le_bytes())
    }

    pub fn number(&mut self, key: &str, value: f64) -> &mut Self {
        self.set(key, F64, &value.to_le_bytes())
    }

    pub fn flag(&mut self, key: &str, value: bool) -> &mut Self {
        self.set(key, BOOL, &[value.into()])
    }

    pub fn text(&mut self, key: &str, value: &str) -> &mut Self {
        self.set(key, TEXT, &text(value))
    }

    pub fn texts(&mut self, key: &str, values: &[&str]) -> &mut Self {
        let bytes = array(TEXT, values.len(), &values.iter().flat_map(|v| text(v)).collect::<Vec<_>>());
        self.set(key, ARRAY, &bytes)
    }

    pub fn without(&mut self, key: &str) -> &mut Self {
        assert!(self.pairs.remove(key).is_some(), "no key {key}");
        self
    }

    pub fn tensor(&mut self, name: &str, shape: &[usize], values: Vec<f32>) -> &mut Self {
        self.tensors.insert(name.to_string(), (shape.to_vec(), values));
        self
    }

    pub fn without_tensor(&mut self, name: &str) -> &mut Self {
        self.take(name);
        self
    }

    /// A tensor, which is then no longer in the file.
    pub fn take(&mut self, name: &str) -> (Vec<usize>, Vec<f32>) {
        self.tensors.remove(name).unwrap_or_else(|| panic!("no tensor {name}"))
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut file = Gguf { version: 3, ..Gguf::default() };
        for (key, (kind, value)) in &self.pairs {
            file.pair(key, *kind, value);
        }
        for (name, (shape, values)) in &self.tensors {
            let dimensions: Vec<u64> = shape.iter().rev().map(|d| *d as u64).collect();
            file.floats(name, &dimensions, values);
        }
        file.bytes()
    }
}

/// Elements of a kind after their kind and number.
pub fn array(kind: u32, count: usize, elements: &[u8]) -> Vec<u8> {
    [&kind.to_le_bytes()[..], &(count as u64).to_le_bytes(), elements].concat()
}

/// The kind and the bytes of a value, numbers in the widest kind.
fn encoded(value: Value) -> (u32, Vec<u8>) {
    match value {
        Value::Unsigned(n) => (U64, n.to_le_bytes().to_vec()),
        Value::Signed(n) => (I64, n.to_le_bytes().to_vec()),
        Value::Float(x) => (F64, x.to_le_bytes().to_vec()),
        Value::Flag(flag) => (BOOL, vec![flag.into()]),
        Value::Text(bytes) => (TEXT, [&(bytes.len() as u64).to_le_bytes()[..], bytes].concat()),
        Value::Array(values) => {
            let elements: Vec<(u32, Vec<u8>)> = values.iter().map(encoded).collect();
            let kind = elements.first().map_or(U32, |(kind, _)| *kind);
            let bytes: Vec<u8> = elements.into_iter().flat_map(|(_, bytes)| bytes).collect();
            (ARRAY, array(kind, values.len(), &bytes))
        }
    }
}
