//! NumPy's array file, for float32 matrices in C order and int64 lists (numpy.lib.format).

use std::io::Read;

const MAGIC: &[u8] = b"\x93NUMPY";
/// The header's length does not depend on the shape, so that it can be written again at the end.
pub const HEADER: usize = 128;

/// The header of a [rows, cols] matrix, version 1.0.
pub fn header(rows: usize, cols: usize) -> Vec<u8> {
    header_of("<f4", &format!("{rows}, {cols}"))
}

/// The header of a list of `len` int64 numbers, version 1.0.
pub fn list_header(len: usize) -> Vec<u8> {
    header_of("<i8", &format!("{len},"))
}

fn header_of(kind: &str, shape: &str) -> Vec<u8> {
    let dictionary = format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': ({shape}), }}");
    let fixed = MAGIC.len() + 4;
    let mut bytes = [MAGIC, &[1, 0], &((HEADER - fixed) as u16).to_le_bytes()].concat();
    bytes.extend(dictionary.as_bytes());
    bytes.resize(HEADER - 1, b' ');
    bytes.push(b'\n');
    bytes
}

/// Reads a header up to the first value and gives (rows, cols), or says what is not as it has to be.
pub fn read_header(reader: &mut impl Read) -> Result<(usize, usize), String> {
    match read_shape(reader, "<f4", "a float32 matrix in C order")?[..] {
        [rows, cols] => Ok((rows, cols)),
        ref shape => Err(format!("expected a float32 matrix in C order, found {} dimensions", shape.len())),
    }
}

/// As [`read_header`], for a list of int64 numbers: how many.
pub fn read_list_header(reader: &mut impl Read) -> Result<usize, String> {
    match read_shape(reader, "<i8", "a list of int64 numbers")?[..] {
        [len] => Ok(len),
        ref shape => Err(format!("expected a list of int64 numbers, found {} dimensions", shape.len())),
    }
}

fn read_shape(reader: &mut impl Read, kind: &str, what: &str) -> Result<Vec<usize>, String> {
    let mut take = |len: usize| {
        let mut bytes = vec![0; len];
        reader.read_exact(&mut bytes).map(|()| bytes).map_err(|e| format!("no NumPy header: {e}"))
    };
    let start = take(MAGIC.len() + 2)?;
    if !start.starts_with(MAGIC) {
        return Err("not a NumPy array file".to_string());
    }
    let len = match start[MAGIC.len()] {
        1 => take(2)?.iter().rev().fold(0, |n, b| n << 8 | usize::from(*b)),
        2 | 3 => take(4)?.iter().rev().fold(0, |n, b| n << 8 | usize::from(*b)),
        version => return Err(format!("version {version} of the NumPy format; 1 to 3 are known")),
    };
    if len > 1 << 16 {
        return Err(format!("a NumPy header of {len} bytes"));
    }
    let text = String::from_utf8_lossy(&take(len)?).replace(' ', "");
    let expected = || format!("expected {what}, found {}", text.trim());
    if !text.contains(&format!("'descr':'{kind}'")) || !text.contains("'fortran_order':False") {
        return Err(expected());
    }
    let shape = text.split_once("'shape':(").and_then(|(_, rest)| rest.split_once(')')).ok_or_else(expected)?.0;
    shape.split(',').filter(|n| !n.is_empty()).map(|n| n.parse().map_err(|_| expected())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_come_back() {
        for shape in [(0, 0), (0, 384), (10, 24), (usize::MAX, 1 << 20)] {
            let bytes = header(shape.0, shape.1);
            assert_eq!(bytes.len() % 64, 0);
            assert_eq!(read_header(&mut &bytes[..]), Ok(shape));
            assert!(read_list_header(&mut &bytes[..]).unwrap_err().contains("int64"));
        }
        assert_eq!(read_list_header(&mut &list_header(11)[..]), Ok(11));
    }

    #[test]
    fn other_arrays_are_refused() {
        let other = String::from_utf8_lossy(&header(2, 3)[10..]).replace("<f4", "<f8");
        let bytes = [&header(2, 3)[..10], other.as_bytes()].concat();
        assert!(read_header(&mut &bytes[..]).unwrap_err().contains("float32"));
        assert!(read_header(&mut &b"{\"id\": 1}, ..."[..]).unwrap_err().contains("not a NumPy"));
        assert!(read_header(&mut &b"\x93N"[..]).is_err());
    }
}
