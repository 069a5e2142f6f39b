//! GGUF files made by hand, right or wrong.

/// The numbers of value types.
pub const U32: u32 = 4;
pub const F32: u32 = 6;
pub const BOOL: u32 = 7;
pub const TEXT: u32 = 8;
pub const ARRAY: u32 = 9;

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
