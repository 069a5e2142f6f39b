//! A Parquet file from the columns' files, row group by row group, uncompressed: vectors do not compress.

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Seek, Take};
use std::sync::Arc;

use kin_infer::InferError;
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, FloatType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use serde_json::Value;

use super::Layout;
use super::columns::{Column, words};
use crate::encoder::Kind;

/// A row group is closed by the text that passes so many values, or that is the last of so many texts. Readers hold a
/// group at a time.
const GROUP_VALUES: usize = 1 << 22;
const GROUP_TEXTS: usize = 1 << 16;

type Reader = Take<BufReader<File>>;
type Writer<'a> = BufWriter<&'a File>;
type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Writes the file. The bytes depend on the columns alone.
pub fn write(file: &File, readers: Vec<Reader>, columns: &[Column], layout: &Layout) -> kin_infer::Result<()> {
    let table = Table { readers, columns, kind: layout.kind, dimension: layout.dimension };
    table.write(file).map_err(|e| {
        // The writer wraps what the system says.
        let e = match e.downcast::<ParquetError>() {
            Ok(wrapped) => match *wrapped {
                ParquetError::External(inner) => inner as Box<dyn std::error::Error>,
                other => Box::new(other),
            },
            Err(other) => other,
        };
        match e.downcast::<std::io::Error>() {
            Ok(io) => InferError::io("the Parquet file in the making", *io),
            Err(other) => InferError::InvalidArgument(format!("the Parquet file cannot be made: {other}")),
        }
    })
}

struct Table<'a> {
    readers: Vec<Reader>,
    columns: &'a [Column],
    kind: Kind,
    dimension: usize,
}

/// The rows of a row group.
#[derive(Default)]
struct Group {
    ids: Vec<Value>,
    /// Numbers of each text, and all of them.
    lengths: Vec<usize>,
    numbers: Vec<i32>,
    values: Vec<f32>,
    counts: Vec<u32>,
}

/// The values of one column of a row group, with their levels.
struct Levels<T> {
    values: Vec<T>,
    definition: Vec<i16>,
    repetition: Vec<i16>,
}

impl Table<'_> {
    fn write(mut self, file: &File) -> Result<()> {
        let whole = self.ids_are_numbers()?;
        let schema = Arc::new(parse_message_type(&self.schema(whole))?);
        let properties = WriterProperties::builder()
            .set_created_by(format!("kin-infer {}", env!("CARGO_PKG_VERSION")))
            .set_dictionary_enabled(false)
            .set_statistics_enabled(EnabledStatistics::None)
            .build();
        let mut writer = SerializedFileWriter::new(BufWriter::new(file), schema, Arc::new(properties))?;
        while let Some(group) = self.group()? {
            let mut rows = writer.next_row_group()?;
            self.write_group(&mut rows, group, whole)?;
            rows.close()?;
        }
        // The error of a buffer holds the buffer.
        writer.into_inner()?.into_inner().map_err(std::io::IntoInnerError::into_error)?;
        Ok(())
    }

    fn schema(&self, whole: bool) -> String {
        let id = if whole { "required int64 id;" } else { "required binary id (STRING);" };
        let list = |name: &str, element: &str| {
            format!("required group {name} (LIST) {{ repeated group list {{ {element} }} }}")
        };
        let floats = "required float element;";
        let numbers = |name: &str| list(name, "required int32 element (INTEGER(32,false));");
        let vectors = match self.kind {
            Kind::Vector => list("embedding", floats),
            Kind::Tokens => format!("{} {}", numbers("token_ids"), list("embeddings", &list("element", floats))),
            Kind::Sparse => format!("{} {}", numbers("indices"), list("values", floats)),
        };
        let counts = if self.columns.contains(&Column::Counts) {
            "required int32 token_count; required boolean truncated;"
        } else {
            ""
        };
        format!("message embeddings {{ {id} {vectors} {counts} }}")
    }

    fn reader(&mut self, column: Column) -> Result<&mut Reader> {
        let at = self.columns.iter().position(|c| *c == column).ok_or("a column is not there")?;
        Ok(&mut self.readers[at])
    }

    /// Whether every id is a whole number that fits the type of such a column.
    fn ids_are_numbers(&mut self) -> Result<bool> {
        let ids = self.reader(Column::Ids)?;
        let len = ids.limit();
        let mut whole = true;
        while let Some(id) = next_id(ids)? {
            whole = whole && id.is_i64();
        }
        ids.get_mut().rewind()?;
        ids.set_limit(len);
        Ok(whole && len > 0)
    }

    /// The next rows; none at the end.
    fn group(&mut self) -> Result<Option<Group>> {
        let mut group = Group::default();
        while group.ids.len() < GROUP_TEXTS && group.values.len() < GROUP_VALUES {
            let Some(id) = next_id(self.reader(Column::Ids)?)? else { break };
            group.ids.push(id);
            let values = if self.kind == Kind::Vector {
                self.dimension
            } else {
                let len = words(self.reader(Column::Lengths)?, 1, u32::from_le_bytes)?[0] as usize;
                group.lengths.push(len);
                group.numbers.extend(words(self.reader(Column::Numbers)?, len, i32::from_le_bytes)?);
                if self.kind == Kind::Tokens { len * self.dimension } else { len }
            };
            group.values.extend(words(self.reader(Column::Values)?, values, f32::from_le_bytes)?);
            if self.columns.contains(&Column::Counts) {
                group.counts.extend(words(self.reader(Column::Counts)?, 2, u32::from_le_bytes)?);
            }
        }
        Ok((!group.ids.is_empty()).then_some(group))
    }

    fn write_group(&self, rows: &mut SerializedRowGroupWriter<Writer>, group: Group, whole: bool) -> Result<()> {
        let Group { ids, lengths, numbers, values, counts } = group;
        if whole {
            put::<Int64Type>(rows, plain(ids.iter().filter_map(Value::as_i64).collect()))?;
        } else {
            let text = |id: &Value| id.as_str().map_or_else(|| id.to_string(), str::to_owned);
            put::<ByteArrayType>(rows, plain(ids.iter().map(|id| ByteArray::from(text(id).into_bytes())).collect()))?;
        }
        if self.kind != Kind::Vector {
            put::<Int32Type>(rows, lists(numbers, lengths.iter().copied()))?;
        }
        let values = match self.kind {
            Kind::Vector => lists(values, std::iter::repeat_n(self.dimension, ids.len())),
            Kind::Sparse => lists(values, lengths.iter().copied()),
            Kind::Tokens => lists_of_lists(values, &lengths, self.dimension),
        };
        put::<FloatType>(rows, values)?;
        if self.columns.contains(&Column::Counts) {
            let (tokens, cut) = counts.chunks_exact(2).map(|c| (c[0] as i32, c[1] != 0)).unzip();
            put::<Int32Type>(rows, plain(tokens))?;
            put::<BoolType>(rows, plain(cut))?;
        }
        Ok(())
    }
}

fn next_id(reader: &mut Reader) -> Result<Option<Value>> {
    let mut line = String::new();
    let read = reader.read_line(&mut line)?;
    if read == 0 { Ok(None) } else { Ok(Some(serde_json::from_str(&line)?)) }
}

/// The column of a required value.
fn plain<T>(values: Vec<T>) -> Levels<T> {
    Levels { values, definition: Vec::new(), repetition: Vec::new() }
}

/// The column of a list, of these lengths.
fn lists<T>(values: Vec<T>, lengths: impl Iterator<Item = usize>) -> Levels<T> {
    let (mut definition, mut repetition) = (Vec::new(), Vec::new());
    for len in lengths {
        definition.extend(std::iter::repeat_n(i16::from(len > 0), len.max(1)));
        repetition.push(0);
        repetition.extend(std::iter::repeat_n(1, len.max(1) - 1));
    }
    Levels { values, definition, repetition }
}

/// The column of a list of lists of `inner` values, of these lengths.
fn lists_of_lists<T>(values: Vec<T>, lengths: &[usize], inner: usize) -> Levels<T> {
    let (mut definition, mut repetition) = (Vec::new(), Vec::new());
    for len in lengths {
        if *len == 0 {
            definition.push(0);
            repetition.push(0);
        }
        for i in 0..*len {
            definition.extend(std::iter::repeat_n(2, inner));
            repetition.push(i16::from(i > 0));
            repetition.extend(std::iter::repeat_n(2, inner - 1));
        }
    }
    Levels { values, definition, repetition }
}

/// Writes the next column of a row group.
fn put<T: DataType>(rows: &mut SerializedRowGroupWriter<Writer>, levels: Levels<T::T>) -> Result<()> {
    let mut column = rows.next_column()?.ok_or("a column too many")?;
    let (definition, repetition) = (&levels.definition, &levels.repetition);
    let nested = (!repetition.is_empty()).then_some(repetition.as_slice());
    let defined = (!definition.is_empty()).then_some(definition.as_slice());
    column.typed::<T>().write_batch(&levels.values, defined, nested)?;
    Ok(column.close()?)
}
