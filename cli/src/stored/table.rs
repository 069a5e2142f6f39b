//! Parquet tables: what `embed` writes, and tables of others with such columns.

use std::fs::File;

use kin_infer::embedder::SparseVector;
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{DataType, FloatType, Int32Type};
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, RowGroupReader, SerializedFileReader};
use parquet::schema::types::SchemaDescriptor;
use serde_json::Value;

use super::Vectors;
use crate::search::Best;

/// Rows that are read at once.
const ROWS: usize = 256;

type Result<T> = std::result::Result<T, String>;

pub fn read_parquet(file: File, best: &mut Best) -> Result<()> {
    let reader = SerializedFileReader::new(file).map_err(words)?;
    let schema = reader.metadata().file_metadata().schema_descr_ptr();
    let columns = Columns::find(&schema)?;
    let mut row = 0;
    for group in 0..reader.num_row_groups() {
        let group = reader.get_row_group(group).map_err(words)?;
        let mut rows = columns.open(&*group, &schema)?;
        loop {
            let read = rows.next()?;
            if read.is_empty() {
                break;
            }
            for (id, vectors) in read {
                best.offer(&vectors, || id).map_err(|why| format!("row {row}: {why}"))?;
                row += 1;
            }
        }
    }
    Ok(())
}

fn words(error: ParquetError) -> String {
    error.to_string()
}

/// Which columns hold what, by their places.
struct Columns {
    id: usize,
    /// Indices of sparse values.
    indices: Option<usize>,
    values: usize,
    /// One vector a token.
    many: bool,
}

impl Columns {
    fn find(schema: &SchemaDescriptor) -> Result<Self> {
        let place =
            |name: &str| schema.columns().iter().position(|c| c.path().parts().first().is_some_and(|p| p == name));
        let id = place("id").ok_or("no column `id`")?;
        let (one, many, indices, values) = (place("embedding"), place("embeddings"), place("indices"), place("values"));
        let found = match (one, many, indices, values) {
            (Some(values), None, None, None) => Self { id, indices: None, values, many: false },
            (None, Some(values), None, None) => Self { id, indices: None, values, many: true },
            (None, None, Some(_), Some(values)) => Self { id, indices, values, many: false },
            _ => {
                let names: Vec<String> = schema.columns().iter().map(|c| c.path().string()).collect();
                let expected = "expected `embedding`, or `embeddings`, or `indices` and `values`, as `embed` writes";
                return Err(format!("{expected}; found {}", names.join(", ")));
            }
        };
        for (column, depth) in [(Some(found.values), if found.many { 2 } else { 1 }), (found.indices, 1), (Some(id), 0)]
        {
            if let Some(column) = column.map(|i| schema.column(i)).filter(|c| c.max_rep_level() != depth) {
                let lists = column.max_rep_level();
                return Err(format!("column `{}` is {lists} lists deep, not {depth}", column.path().string()));
            }
        }
        Ok(found)
    }

    fn open(&self, group: &dyn RowGroupReader, schema: &SchemaDescriptor) -> Result<Rows> {
        let open = |i: usize| group.get_column_reader(i).map_err(words);
        let levels = |i: usize| (schema.column(i).max_def_level(), schema.column(i).max_rep_level());
        let other = |i: usize, expected: &str| {
            let column = schema.column(i);
            Err(format!("column `{}` is {}, expected {expected}", column.path().string(), column.physical_type()))
        };
        let values = match open(self.values)? {
            ColumnReader::FloatColumnReader(reader) => Lists { reader, levels: levels(self.values) },
            _ => return other(self.values, "FLOAT"),
        };
        let indices = match self.indices.map(|i| Ok::<_, String>((i, open(i)?))).transpose()? {
            None => None,
            Some((i, ColumnReader::Int32ColumnReader(reader))) => Some(Lists { reader, levels: levels(i) }),
            Some((i, _)) => return other(i, "INT32"),
        };
        Ok(Rows { ids: open(self.id)?, indices, values, many: self.many })
    }
}

/// The rows of a row group.
struct Rows {
    ids: ColumnReader,
    indices: Option<Lists<Int32Type>>,
    values: Lists<FloatType>,
    many: bool,
}

impl Rows {
    /// The next rows; none at the end.
    fn next(&mut self) -> Result<Vec<(Value, Vectors)>> {
        let ids = self.next_ids()?;
        let values = self.values.next()?;
        let indices = self.indices.as_mut().map(Lists::next).transpose()?;
        if values.len() != ids.len() || indices.as_ref().is_some_and(|i| i.len() != ids.len()) {
            return Err("its columns have different lengths".to_string());
        }
        let mut indices = indices.map(Vec::into_iter);
        let mut rows = Vec::with_capacity(ids.len());
        for (id, list) in ids.into_iter().zip(values) {
            let vectors = match indices.as_mut().and_then(Iterator::next) {
                Some(indices) => sparse(&indices.values, list.values)?,
                None if self.many => {
                    let dimension = list.values.len() / list.lists.max(1);
                    if dimension * list.lists != list.values.len() {
                        return Err("`embeddings` of different lengths".to_string());
                    }
                    Vectors::Many { values: list.values, dimension }
                }
                None => Vectors::One(list.values),
            };
            rows.push((id, vectors));
        }
        Ok(rows)
    }

    fn next_ids(&mut self) -> Result<Vec<Value>> {
        let mut defined = Vec::new();
        let (ids, rows): (Vec<Value>, usize) = match &mut self.ids {
            ColumnReader::Int64ColumnReader(reader) => {
                let mut ids = Vec::new();
                let (rows, ..) = reader.read_records(ROWS, Some(&mut defined), None, &mut ids).map_err(words)?;
                (ids.into_iter().map(Value::from).collect(), rows)
            }
            ColumnReader::ByteArrayColumnReader(reader) => {
                let mut ids = Vec::new();
                let (rows, ..) = reader.read_records(ROWS, Some(&mut defined), None, &mut ids).map_err(words)?;
                let text = |id: &parquet::data_type::ByteArray| {
                    std::str::from_utf8(id.data()).map(Value::from).map_err(|_| "an `id` that is not UTF-8".to_string())
                };
                (ids.iter().map(text).collect::<Result<_>>()?, rows)
            }
            _ => return Err("column `id` is neither text nor whole numbers of 64 bits".to_string()),
        };
        if ids.len() != rows {
            return Err("an `id` is null".to_string());
        }
        Ok(ids)
    }
}

fn sparse(indices: &[i32], values: Vec<f32>) -> Result<Vectors> {
    // The bits of an unsigned number.
    let indices: Vec<u32> = indices.iter().map(|i| *i as u32).collect();
    if indices.len() != values.len() {
        return Err(format!("{} `indices` but {} `values`", indices.len(), values.len()));
    }
    if !indices.is_sorted_by(|a, b| a < b) {
        return Err("`indices` that do not ascend".to_string());
    }
    Ok(Vectors::Sparse(SparseVector { indices, values }))
}

/// Reads a column of lists.
struct Lists<T: DataType> {
    reader: ColumnReaderImpl<T>,
    /// Levels of a value that is there, and of one that goes on in its innermost list.
    levels: (i16, i16),
}

/// A row of a column of lists.
struct List<T> {
    values: Vec<T>,
    /// Innermost lists in it that have values.
    lists: usize,
}

impl<T: DataType> Lists<T> {
    fn next(&mut self) -> Result<Vec<List<T::T>>> {
        let (mut definition, mut repetition, mut values) = (Vec::new(), Vec::new(), Vec::new());
        self.reader.read_records(ROWS, Some(&mut definition), Some(&mut repetition), &mut values).map_err(words)?;
        let (mut rows, mut values) = (Vec::<List<T::T>>::new(), values.into_iter());
        for (defined, repeated) in definition.into_iter().zip(repetition) {
            if repeated == 0 {
                rows.push(List { values: Vec::new(), lists: 0 });
            }
            let row = rows.last_mut().ok_or("a list that goes on before it begins")?;
            if defined == self.levels.0 {
                row.values.extend(values.next());
                row.lists += usize::from(repeated < self.levels.1);
            }
        }
        Ok(rows)
    }
}
