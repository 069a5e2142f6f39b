//! Blocks of quantised values: the bits of the `gguf` Python package both ways, and tensors of blocks in files.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use kin_infer::weights::{Checkpoint, Dtype, Tensor, blocks};
use kin_infer::{InferError, Result};
use safetensors::tensor::TensorView;

const BLOCKS: [Dtype; 8] =
    [Dtype::Q8_0, Dtype::Q4_0, Dtype::Q4_1, Dtype::Q5_0, Dtype::Q5_1, Dtype::Q4K, Dtype::Q5K, Dtype::Q6K];

fn fixture() -> Checkpoint {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/blocks.safetensors");
    Checkpoint::open_file(&path).unwrap()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// A safetensors file of one U8 tensor, and the metadata's description of it; removed when dropped.
struct File(PathBuf);

impl File {
    fn new(bytes: &[u8], described: &str) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let unique = format!("kin-infer-blocks-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(unique);
        let view = TensorView::new(safetensors::Dtype::U8, vec![bytes.len()], bytes).unwrap();
        let metadata = HashMap::from([("kin_infer.blocks".to_string(), described.to_string())]);
        safetensors::serialize_to_file([("w", view)], Some(metadata), &path).unwrap();
        Self(path)
    }

    fn open(&self) -> Result<Checkpoint> {
        Checkpoint::open_file(&self.0)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        fs::remove_file(&self.0).unwrap();
    }
}

/// A tensor of blocks with these bytes.
fn tensor(dtype: Dtype, shape: &[usize], bytes: &[u8]) -> Tensor {
    let file = File::new(bytes, &format!(r#"{{"w": {{"dtype": "{dtype}", "shape": {shape:?}}}}}"#));
    file.open().unwrap().tensor("w").unwrap().clone()
}

/// Random bytes whose scales are finite: the fixture's blocks, as a tensor [rows, blocks of a row], and their values.
fn example(dtype: Dtype) -> (Tensor, Vec<f32>) {
    let fixture = fixture();
    let bytes = fixture.get(&format!("read.{dtype}.blocks")).unwrap().bytes();
    let values = fixture.tensor(&format!("read.{dtype}.values")).unwrap().to_f32().unwrap();
    (tensor(dtype, &[values.len() / (2 * dtype.block_len()), 2 * dtype.block_len()], bytes), values)
}

#[test]
fn blocks_are_read_to_the_bits_of_the_reference() {
    let fixture = fixture();
    for dtype in BLOCKS {
        let bytes = fixture.get(&format!("read.{dtype}.blocks")).unwrap();
        let expected = fixture.tensor(&format!("read.{dtype}.values")).unwrap();
        assert_eq!((bytes.shape()[1], expected.shape()[1]), (dtype.size(), dtype.block_len()), "{dtype}");
        let mut values = vec![0.0; expected.len()];
        blocks::dequantise(dtype, bytes.bytes(), &mut values).unwrap();
        assert_eq!(bits(&values), bits(&expected.to_f32().unwrap()), "{dtype}");
    }
}

#[test]
fn blocks_are_written_to_the_bits_of_the_reference() {
    let fixture = fixture();
    let values = fixture.tensor("write.values").unwrap().to_f32().unwrap();
    for (dtype, levels) in [(Dtype::Q8_0, 127.0), (Dtype::Q4_0, 8.0)] {
        let expected = fixture.get(&format!("write.{dtype}.blocks")).unwrap().bytes();
        let mut refused = 0;
        for (row, (values, expected)) in values.chunks_exact(32).zip(expected.chunks_exact(dtype.size())).enumerate() {
            let mut block = vec![0; dtype.size()];
            let written = blocks::quantise(dtype, values, &mut block);
            if values.iter().any(|v| v.abs() > 65504.0 * levels) {
                assert!(written.unwrap_err().to_string().contains("whose scale overflows binary16"), "{dtype} {row}");
                refused += 1;
            } else {
                assert_eq!((row, &block[..]), (row, expected), "{dtype}");
            }
        }
        assert_eq!(refused, if dtype == Dtype::Q8_0 { 0 } else { 1 });
    }
}

#[test]
fn what_is_not_finite_or_no_whole_block_is_not_written() {
    for dtype in [Dtype::Q8_0, Dtype::Q4_0] {
        for (at, bad) in [(0, f32::NAN), (31, f32::INFINITY), (40, f32::NEG_INFINITY)] {
            let mut values = [1.0; 64];
            values[at] = bad;
            let error = blocks::quantise(dtype, &values, &mut vec![0; 2 * dtype.size()]).unwrap_err();
            assert!(error.to_string().contains(&format!("[{at}] is {bad}, expected finite")), "{error}");
        }
        let mut values = [1.0; 64];
        values[50] = -1e7;
        let error = blocks::quantise(dtype, &values, &mut vec![0; 2 * dtype.size()]).unwrap_err();
        assert!(error.to_string().contains("[50] is -1e7, whose scale overflows"), "{error}");
        for (values, bytes) in [(31, dtype.size()), (32, dtype.size() - 1), (64, dtype.size()), (0, 1)] {
            let error = blocks::quantise(dtype, &vec![0.0; values], &mut vec![0; bytes]).unwrap_err();
            assert!(matches!(error, InferError::InvalidArgument(_)), "{error}");
            blocks::dequantise(dtype, &vec![0; bytes], &mut vec![0.0; values]).unwrap_err();
        }
    }
    for dtype in [Dtype::F32, Dtype::BF16, Dtype::Q4K] {
        blocks::quantise(dtype, &[0.0; 256], &mut vec![0; dtype.bytes_of(&[256]).unwrap()]).unwrap_err();
    }
    blocks::dequantise(Dtype::F32, &[0; 4], &mut [0.0]).unwrap_err();
}

#[test]
fn a_tensor_of_blocks_reads_any_part() {
    for dtype in BLOCKS {
        let (tensor, expected) = example(dtype);
        assert_eq!((tensor.dtype().unwrap(), tensor.len()), (dtype, expected.len()));
        assert_eq!(bits(&tensor.to_f32().unwrap()), bits(&expected), "{dtype}");
        let len = dtype.block_len();
        for first in [0, 1, len - 1, len, len + 3, 3 * len - 1, expected.len() - 1, expected.len()] {
            for count in [0, 1, 2, len - 1, len, len + 1, 2 * len + 5] {
                let mut out = vec![9.0; count];
                match expected.get(first..first + count) {
                    Some(part) => {
                        tensor.read_f32(first, &mut out).unwrap();
                        assert_eq!(bits(&out), bits(part), "{dtype} {first} {count}");
                    }
                    None => {
                        tensor.read_f32(first, &mut out).unwrap_err();
                        assert!(out.iter().all(|v| *v == 9.0));
                    }
                }
            }
        }
    }
}

#[test]
fn rows_and_copies_of_a_tensor_of_blocks() {
    for dtype in BLOCKS {
        let (tensor, values) = example(dtype);
        let (rows, k) = (tensor.shape()[0], tensor.shape()[1]);
        let row_bytes = dtype.bytes_of(&[k]).unwrap();
        let part = tensor.rows(3..5).unwrap();
        assert_eq!((part.shape(), part.bytes()), (&[2, k][..], &tensor.bytes()[3 * row_bytes..5 * row_bytes]));
        assert_eq!(bits(&part.to_f32().unwrap()), bits(&values[3 * k..5 * k]));
        assert_eq!(part.rows(1..2).unwrap().bytes(), tensor.rows(4..5).unwrap().bytes());
        assert!(tensor.rows(3..rows + 1).is_err());

        let turned = tensor.rows_rearranged(rows + 2, |row| (row + 3) % rows).unwrap();
        assert_eq!((turned.dtype().unwrap(), turned.shape()), (dtype, &[rows + 2, k][..]));
        for row in 0..rows + 2 {
            let (new, old) = (turned.rows(row..row + 1).unwrap(), (row + 3) % rows);
            assert_eq!(new.bytes(), tensor.rows(old..old + 1).unwrap().bytes(), "{dtype} {row}");
        }
        assert!(tensor.rows_rearranged(1, |_| rows).is_err());
        assert_eq!(tensor.rows_rearranged(0, |_| 0).unwrap().shape(), [0, k]);

        let copy = tensor.rearranged(&[k, rows], |i| (i != 1).then_some(i % rows * k + i / rows)).unwrap();
        assert_eq!((copy.dtype().unwrap(), copy.shape()), (Dtype::F32, &[k, rows][..]));
        let transposed = |i: usize| if i == 1 { 0.0 } else { values[i % rows * k + i / rows] };
        assert_eq!(bits(&copy.to_f32().unwrap()), bits(&(0..rows * k).map(transposed).collect::<Vec<_>>()));
        let mapped = tensor.mapped(|v| v + 1.0).unwrap();
        assert_eq!((mapped.dtype().unwrap(), mapped.shape()), (Dtype::F32, tensor.shape()));
        assert_eq!(bits(&mapped.to_f32().unwrap()), bits(&values.iter().map(|v| v + 1.0).collect::<Vec<_>>()));
    }
}

#[test]
fn a_vector_of_blocks_is_cut_between_blocks_only() {
    let vector = tensor(Dtype::Q8_0, &[96], &[7; 102]);
    assert_eq!(vector.rows(32..96).unwrap().bytes().len(), 68);
    let error = vector.rows(0..33).unwrap_err().to_string();
    assert!(error.contains("rows of whole blocks of 32 elements, found a cut at element 33"), "{error}");
    assert!(vector.rows_rearranged(96, |i| i).is_err());
}

#[test]
fn a_scale_that_is_not_finite_is_found() {
    for dtype in BLOCKS {
        let (example, _) = example(dtype);
        assert_eq!(example.first_non_finite().unwrap(), None, "{dtype}");
        let places: &[usize] = match dtype {
            Dtype::Q6K => &[208],
            Dtype::Q8_0 | Dtype::Q4_0 | Dtype::Q5_0 => &[0],
            _ => &[0, 2],
        };
        for place in places {
            for bad in [0x7c00u16, 0xfc00, 0x7e01] {
                let mut bytes = example.bytes().to_vec();
                let at = 5 * dtype.size() + place;
                bytes[at..at + 2].copy_from_slice(&bad.to_le_bytes());
                let found = tensor(dtype, example.shape(), &bytes).first_non_finite().unwrap();
                assert_eq!(found, Some(5 * dtype.block_len()), "{dtype} {place} {bad:#x}");
            }
        }
    }
}

#[test]
fn descriptions_that_contradict_the_file_are_refused() {
    let cases = [
        (r#"{"v": {"dtype": "Q8_0", "shape": [2, 32]}}"#, "tensor `v`: expected a tensor of this name"),
        (r#"{"w": {"dtype": "F32", "shape": [17]}}"#, "expected a type that comes in blocks, found `F32`"),
        (r#"{"w": {"dtype": "Q9", "shape": [2, 32]}}"#, "found `Q9`"),
        (r#"{"w": {"dtype": "Q8_0", "shape": [32]}}"#, "U8 bytes of whole blocks, Q8_0 [32], found 68 bytes of U8"),
        (r#"{"w": {"dtype": "Q8_0", "shape": [4, 16]}}"#, "Q8_0 [4, 16]"),
        (r#"{"w": {"dtype": "Q8_0", "shape": [1152921504606846976, 64]}}"#, "found 68 bytes of U8"),
        (r#"{"w": {"dtype": "Q8_0", "shape": [-2, 32]}}"#, "key `kin_infer.blocks` is not valid"),
        (r#"{"w": {"dtype": "Q8_0", "shape": [2, 32]}, "w": {}}"#, "tensor `w` is named twice"),
        ("[]", "key `kin_infer.blocks` is not valid"),
        ("", "key `kin_infer.blocks` is not valid"),
    ];
    for (described, expected) in cases {
        let error = File::new(&[0; 68], described).open().unwrap_err().to_string();
        assert!(error.contains(expected), "{described}: {error}");
    }
    let plain = File::new(&[0; 68], "{}").open().unwrap();
    assert_eq!(plain.get("w").unwrap().dtype_name(), "U8");
}

#[test]
fn types_know_their_names_and_sizes() {
    let sizes: Vec<_> = BLOCKS.iter().map(|d| (d.to_string(), d.block_len(), d.size())).collect();
    let expected = [
        ("Q8_0", 32, 34),
        ("Q4_0", 32, 18),
        ("Q4_1", 32, 20),
        ("Q5_0", 32, 22),
        ("Q5_1", 32, 24),
        ("Q4_K", 256, 144),
        ("Q5_K", 256, 176),
        ("Q6_K", 256, 210),
    ];
    assert_eq!(sizes, expected.map(|(name, len, size)| (name.to_string(), len, size)));
    for (name, dtype) in Dtype::ALL {
        assert_eq!((Dtype::named(name), dtype.name()), (Some(*dtype), *name));
    }
    assert_eq!(Dtype::named("U8"), None);
    assert_eq!(Dtype::Q4_0.bytes_of(&[3, 64]), Some(108));
    assert_eq!(Dtype::Q4_0.bytes_of(&[3, 65]), None);
    assert_eq!(Dtype::Q4_0.bytes_of(&[usize::MAX, 64]), None);
    assert_eq!(Dtype::F16.bytes_of(&[]), Some(2));
}
