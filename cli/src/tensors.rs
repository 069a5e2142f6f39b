//! A safetensors file that is written tensor by tensor, though its header comes first.

use std::path::Path;

use serde_json::{Map, Value, json};

use crate::failure::{Failure, Result};
use crate::output::Sink;

/// Room for the header is kept by the tensors that are expected; those that come fill it, and spaces the rest.
pub struct TensorFile {
    sink: Sink,
    /// Bytes kept for the header.
    room: usize,
    header: Map<String, Value>,
    written: usize,
}

/// A float32 tensor's entry, the values from byte `start` on.
fn entry(shape: &[usize], start: usize) -> Value {
    let len = shape.iter().product::<usize>() * 4;
    json!({"dtype": "F32", "shape": shape, "data_offsets": [start, start + len]})
}

impl TensorFile {
    /// Opens `target` for float32 tensors, some of `expected`, in its order.
    pub fn create<'a>(target: &Path, expected: impl Iterator<Item = (String, &'a [usize])>) -> Result<Self> {
        let mut start = 0;
        let mut header = Map::new();
        for (name, shape) in expected {
            header.insert(name, entry(shape, start));
            start += shape.iter().product::<usize>() * 4;
        }
        let room = Value::Object(header).to_string().len().next_multiple_of(8);
        let mut sink = Sink::file(target)?;
        sink.put(&vec![b' '; 8 + room])?;
        Ok(Self { sink, room, header: Map::new(), written: 0 })
    }

    /// The next tensor.
    pub fn write(&mut self, name: &str, shape: &[usize], values: &[f32]) -> Result<()> {
        self.header.insert(name.to_owned(), entry(shape, self.written));
        self.written += values.len() * 4;
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.sink.put(&bytes)
    }

    /// Writes the header; the file gets its name.
    pub fn commit(mut self) -> Result<()> {
        let mut header = Value::Object(self.header).to_string().into_bytes();
        if header.len() > self.room {
            return Err(Failure::Failed("a tensor came that was not expected".to_string()));
        }
        header.resize(self.room, b' ');
        let start = [&(self.room as u64).to_le_bytes()[..], &header].concat();
        self.sink.rewrite_start(&start)?;
        self.sink.commit()
    }
}
