//! NumPy's array file, for float32 matrices in C order (numpy.lib.format).

use std::io::Read;

const MAGIC: &[u8] = b"\x93NUMPY";
/// The header's length does not depend on the shape, so that it can be written again at the end.
const HEADER: usize = 128;

/// The header of a [rows, cols] matrix, version 1.0.
pub fn header(rows: usize, cols: usize) -> Vec<u8> {
    let dictionary = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {cols}), }}");
    let fixed = MAGIC.len() + 4;
    let mut bytes = [MAGIC, &[1, 0], &((HEADER - fixed) as u16).to_le_bytes()].concat();
    bytes.extend(dictionary.as_bytes());
    bytes.resize(HEADER - 1, b' ');
    bytes.push(b'\n');
    bytes
}

/// Reads a header up to the first value and gives (rows, cols), or says what is not as it has to be.
pub fn read_header(reader: &mut impl Read) -> Result<(usize, usize), String> {
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
    let expected = || format!("expected a float32 matrix in C order, found {}", text.trim());
    if !text.contains("'descr':'<f4'") || !text.contains("'fortran_order':False") {
        return Err(expected());
    }
    let shape = text.split_once("'shape':(").and_then(|(_, rest)| rest.split_once(')')).ok_or_else(expected)?.0;
    let sizes: Vec<usize> = shape.split(',').filter_map(|n| n.parse().ok()).collect();
    match sizes[..] {
        [rows, cols] => Ok((rows, cols)),
        _ => Err(expected()),
    }
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
        }
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
