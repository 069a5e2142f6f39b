//! Checkpoints: values read back exactly, every malformed or contradictory file refused with an error that names the
//! place and the numbers, and no byte of a header that makes `open` panic.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use kin_infer::weights::{Checkpoint, Dtype, Tensor};
use kin_infer::{InferError, Result};

/// A fresh folder, removed when the test ends.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let unique = format!("kin-infer-checkpoint-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(unique);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, bytes).unwrap();
        path
    }

    fn open(&self) -> Result<Checkpoint> {
        Checkpoint::open(&self.0)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

/// A file of this header and `data` zero bytes.
fn raw(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data, 0);
    bytes
}

/// A well-formed file of the tensors, in this order.
fn file(tensors: &[(&str, &str, &[usize], Vec<u8>)]) -> Vec<u8> {
    let mut data = Vec::<u8>::new();
    let mut parts = Vec::new();
    for (name, dtype, shape, bytes) in tensors {
        let (start, end) = (data.len(), data.len() + bytes.len());
        parts.push(format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{start},{end}]}}"#));
        data.extend(bytes);
    }
    let mut bytes = raw(&format!("{{{}}}", parts.join(",")), 0);
    bytes.extend(data);
    bytes
}

fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

fn u16s(values: &[u16]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// What an error is about: its variant, the file's name, and the tensor's.
fn about(error: &InferError) -> (&'static str, String, String) {
    let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
    match error {
        InferError::ModelError { file, .. } => ("model", name(file), String::new()),
        InferError::TensorError { file, tensor, .. } => ("tensor", name(file), tensor.clone()),
        InferError::IoError { path, .. } => ("io", name(path), String::new()),
        other => panic!("unexpected variant {other:?}"),
    }
}

/// Requires an error about `file` (and `tensor`, unless empty) whose message holds each of `parts`.
fn refused(case: &str, result: Result<Checkpoint>, file: &str, tensor: &str, parts: &[&str]) {
    let error = match result {
        Ok(checkpoint) => panic!("{case}: accepted as {checkpoint:?}"),
        Err(error) => error,
    };
    let variant = if tensor.is_empty() { "model" } else { "tensor" };
    assert_eq!(about(&error), (variant, file.to_owned(), tensor.to_owned()), "{case}: {error}");
    let message = error.to_string();
    for part in [file, tensor].iter().chain(parts) {
        assert!(message.contains(part), "{case}: `{part}` is not in: {message}");
    }
}

#[test]
fn malformed_files_are_refused_by_place_and_number() {
    const ONE: &str = r#"{"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}"#;
    let of = |entries: &str, data: usize| raw(&format!("{{{entries}}}"), data);
    let claim = |name: &str, dtype: &str, shape: &str, start: u64, end: u64| {
        format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{start},{end}]}}"#)
    };
    let pair = |second: String, data: usize| of(&format!("{},{second}", claim("a", "F32", "[2]", 0, 8)), data);
    const MAX: &str = "18446744073709551615";

    #[rustfmt::skip]
    let cases: Vec<(&str, Vec<u8>, &str, &[&str])> = vec![
        ("empty file", vec![], "", &["empty", "0 bytes"]),
        ("shorter than the length", vec![1, 0, 0, 0, 0, 0, 0], "", &["at least 8 bytes", "found 7 bytes"]),
        ("nothing after the length", vec![0; 8], "", &["empty header"]),
        ("header beyond the file", raw(ONE, 0)[..40].to_vec(), "", &["beyond the file", "expected 57", "found 32"]),
        ("header over the limit", [0xff; 16].to_vec(), "", &["100000000", MAX]),
        ("git-lfs pointer", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n".to_vec(), "", &["git lfs pull"]),
        ("not JSON", raw("{nonsense", 0), "", &["header is not valid", "column"]),
        ("not an object", raw("[1, 2]", 0), "", &["`{`", "0x5b"]),
        ("leading space", raw(&format!(" {ONE}"), 24), "", &["`{`", "0x20"]),
        ("not UTF-8", { let mut b = raw(ONE, 24); b[10] = 0xff; b }, "", &["header is not valid"]),
        ("text after the JSON", raw(&format!("{ONE}x"), 24), "", &["trailing characters"]),
        ("deep nesting", raw(&format!(r#"{{"a":{}"#, "[".repeat(100_000)), 0), "", &["tensor `a`"]),
        ("no dtype", of(r#""a":{"shape":[2],"data_offsets":[0,8]}"#, 8), "", &["tensor `a`", "dtype"]),
        ("negative dimension", of(&claim("a", "F32", "[-2]", 0, 8), 8), "", &["tensor `a`", "-2"]),
        ("fractional dimension", of(&claim("a", "F32", "[2.0]", 0, 8), 8), "", &["tensor `a`", "2.0"]),
        ("three offsets", of(r#""a":{"dtype":"F32","shape":[2],"data_offsets":[0,8,8]}"#, 8), "", &["tensor `a`"]),
        ("metadata not strings", of(r#""__metadata__":{"format":1}"#, 0), "", &["header is not valid"]),
        ("metadata twice", of(r#""__metadata__":{},"__metadata__":{}"#, 0), "", &["named twice"]),
        ("name twice, same data", pair(claim("a", "F32", "[2]", 0, 8), 8), "", &["tensor `a`", "twice"]),
        ("name twice, other data", pair(claim("a", "F32", "[2]", 8, 16), 16), "", &["tensor `a`", "twice"]),
        ("name twice, escaped", pair(claim("\\u0061", "I32", "[2]", 0, 8), 8), "", &["tensor `a`", "twice"]),
        ("unknown dtype", of(&claim("a", "F33", "[2]", 0, 8), 8), "a", &["dtype", "`F33`"]),
        ("dtype in lower case", of(&claim("a", "f32", "[2]", 0, 8), 8), "a", &["dtype", "`f32`"]),
        ("offsets beyond the file", of(&claim("a", "F32", "[4]", 0, 16), 8), "a", &["within the 8 bytes", "[0, 16]"]),
        ("offsets far beyond", of(&claim("a", "U8", "[8]", u64::MAX - 8, u64::MAX), 8), "a", &["within the 8 bytes", MAX]),
        ("offsets descend", of(&claim("a", "F32", "[2]", 8, 0), 8), "a", &["ascending", "[8, 0]"]),
        ("truncated data", raw(ONE, 23), "a", &["within the 23 bytes", "[0, 24]", "truncated"]),
        ("data after the last tensor", raw(ONE, 25), "", &["expected 24 bytes", "found 25"]),
        ("data and no tensor", raw("{}", 3), "", &["expected 0 bytes", "found 3"]),
        ("shape over the bytes", of(&claim("a", "F32", "[2, 3]", 0, 20), 20), "a", &["24 bytes", "F32 [2, 3]", "20 bytes"]),
        ("shape under the bytes", of(&claim("a", "BF16", "[2, 3]", 0, 20), 20), "a", &["12 bytes", "BF16 [2, 3]", "20 bytes"]),
        ("scalar of two", of(&claim("a", "F32", "[]", 0, 8), 8), "a", &["4 bytes", "F32 []", "8 bytes"]),
        ("half a byte", of(&claim("a", "F4", "[3]", 0, 2), 2), "a", &["whole bytes", "12 bits"]),
        ("elements overflow", of(&claim("a", "U8", "[4294967296, 4294967296]", 0, 8), 8), "a", &["overflows", "4294967296"]),
        ("bits overflow", of(&claim("a", "F32", "[2305843009213693952]", 0, 8), 8), "a", &["overflows"]),
        ("elements wrap to the size", of(&claim("a", "U8", &format!("[{MAX}, {MAX}]"), 0, 1), 1), "a", &["overflows", MAX]),
        ("overlap", pair(claim("b", "F32", "[2]", 4, 12), 12), "b", &["overlap", "offset 8", "a ends", "[4, 12]"]),
        ("same place", pair(claim("b", "F32", "[2]", 0, 8), 8), "b", &["overlap", "offset 8", "[0, 8]"]),
        ("inside another", pair(claim("b", "F32", "[1]", 4, 8), 8), "b", &["overlap", "[4, 8]"]),
        ("empty, inside another", pair(claim("b", "F32", "[0]", 4, 4), 8), "b", &["overlap", "[4, 4]"]),
        ("hole", pair(claim("b", "F32", "[1]", 12, 16), 16), "b", &["a hole", "offset 8", "a ends", "[12, 16]"]),
        ("hole at the start", of(&claim("a", "F32", "[1]", 4, 8), 8), "a", &["a hole", "offset 0", "the header ends"]),
    ];
    let folder = Folder::new();
    for (case, bytes, tensor, parts) in cases {
        folder.write("model.safetensors", bytes);
        refused(case, folder.open(), "model.safetensors", tensor, parts);
    }
}

#[test]
fn unusual_files_are_read() {
    type Lengths = &'static [(&'static str, usize)];
    let cases: [(&str, Vec<u8>, Lengths); 6] = [
        ("no tensor", raw("{}", 0), &[]),
        ("padded header", raw("{}      ", 0), &[]),
        ("metadata", raw(r#"{"__metadata__":{"format":"pt"}}"#, 0), &[]),
        ("scalar", file(&[("s", "F32", &[], f32s(&[3.0]))]), &[("s", 1)]),
        (
            "zero-sized before, between and after",
            file(&[
                ("z1", "F32", &[0], vec![]),
                ("a", "F32", &[1], f32s(&[1.0])),
                ("z2", "BF16", &[7, 0, 9], vec![]),
                ("b", "F16", &[2], vec![0; 4]),
                ("z3", "I64", &[0, 0], vec![]),
            ]),
            &[("a", 1), ("b", 2), ("z1", 0), ("z2", 0), ("z3", 0)],
        ),
        (
            "entries out of the order of their data",
            raw(
                r#"{"a":{"dtype":"U8","shape":[3],"data_offsets":[1,4]},"b":{"dtype":"U8","shape":[],"data_offsets":[0,1]}}"#,
                4,
            ),
            &[("a", 3), ("b", 1)],
        ),
    ];
    let folder = Folder::new();
    for (case, bytes, expected) in cases {
        folder.write("model.safetensors", bytes);
        let checkpoint = folder.open().unwrap_or_else(|e| panic!("{case}: {e}"));
        let found: Vec<_> = checkpoint.names().map(|n| (n, checkpoint.get(n).unwrap().len())).collect();
        assert_eq!(found, expected, "{case}");
        for (name, len) in expected {
            let tensor = checkpoint.get(name).unwrap();
            assert_eq!(tensor.is_empty(), *len == 0, "{case}");
            if tensor.dtype().is_ok() {
                assert_eq!(tensor.to_f32().unwrap().len(), *len, "{case}");
                assert_eq!(tensor.first_non_finite().unwrap(), None, "{case}");
            }
        }
    }
}

/// The value of 16 bits with this many exponent and mantissa bits, by the definition of the format.
fn value(raw: u16, exponent_bits: u32, mantissa_bits: u32) -> f64 {
    let raw = u32::from(raw);
    let sign = if raw >> 15 == 1 { -1.0 } else { 1.0 };
    let exponent = (raw >> mantissa_bits) & ((1 << exponent_bits) - 1);
    let mantissa = f64::from(raw & ((1 << mantissa_bits) - 1)) / f64::from(1u32 << mantissa_bits);
    let bias = (1i32 << (exponent_bits - 1)) - 1;
    match exponent {
        0 => sign * mantissa * 2f64.powi(1 - bias),
        e if e == (1 << exponent_bits) - 1 => {
            if mantissa == 0.0 {
                sign * f64::INFINITY
            } else {
                f64::NAN
            }
        }
        e => sign * (1.0 + mantissa) * 2f64.powi(e as i32 - bias),
    }
}

#[test]
fn every_half_widens_exactly_at_odd_alignment() {
    let all: Vec<u16> = (0..=u16::MAX).collect();
    let floats =
        [0.0, -0.0, 1.5, f32::MIN_POSITIVE, f32::from_bits(1), -f32::from_bits(0x7f_ffff), f32::MAX, f32::INFINITY];
    let folder = Folder::new();
    let path = folder.write(
        "model.safetensors",
        file(&[
            ("odd", "U8", &[1], vec![0]),
            ("f16", "F16", &[256, 256], u16s(&all)),
            ("bf16", "BF16", &[65536], u16s(&all)),
            ("f32", "F32", &[2, 4], f32s(&floats)),
        ]),
    );
    let checkpoint = Checkpoint::open_file(&path).unwrap();
    for (name, dtype, exponent, mantissa) in [("f16", Dtype::F16, 5, 10), ("bf16", Dtype::BF16, 8, 7)] {
        let tensor = checkpoint.tensor(name).unwrap();
        assert_eq!(tensor.dtype().unwrap(), dtype);
        for (raw, found) in all.iter().zip(tensor.to_f32().unwrap()) {
            let expected = value(*raw, exponent, mantissa);
            let same = f64::from(found).to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
            assert!(same, "{name} {raw:#06x}: {found:e} is not {expected:e}");
        }
    }
    let tensor = checkpoint.tensor("f32").unwrap();
    assert_eq!((tensor.name(), tensor.file(), tensor.shape()), ("f32", path.as_path(), &[2, 4][..]));
    assert_eq!(tensor.bytes(), f32s(&floats));
    assert_eq!(bits(&tensor.to_f32().unwrap()), bits(&floats));
    assert_eq!(checkpoint.total_bytes(), 1 + 2 * 131_072 + 32);
    assert_eq!(
        [Dtype::F32, Dtype::F16, Dtype::BF16].map(|d| (d.to_string(), d.size())),
        [("F32".to_owned(), 4), ("F16".to_owned(), 2), ("BF16".to_owned(), 2)]
    );
}

#[test]
fn parts_are_read_within_bounds() {
    let values: Vec<f32> = (0..3000).map(|i| i as f32).collect();
    let folder = Folder::new();
    let halves: Vec<u16> = values.iter().map(|v| half::bf16::from_f32(*v).to_bits()).collect();
    folder.write(
        "model.safetensors",
        file(&[("a", "F32", &[3000], f32s(&values)), ("b", "BF16", &[30, 100], u16s(&halves))]),
    );
    let checkpoint = folder.open().unwrap();
    for name in ["a", "b"] {
        let tensor = checkpoint.tensor(name).unwrap();
        let whole = tensor.to_f32().unwrap();
        for (first, len) in [(0, 0), (0, 1), (1, 2999), (999, 1025), (2999, 1), (3000, 0)] {
            let mut out = vec![-1.0; len];
            tensor.read_f32(first, &mut out).unwrap();
            assert_eq!(out, whole[first..first + len], "{name} {first} {len}");
        }
        for (first, len) in [(0, 3001), (3000, 1), (3001, 0), (usize::MAX, 2)] {
            let mut out = vec![-1.0; len];
            let error = tensor.read_f32(first, &mut out).unwrap_err();
            assert_eq!(about(&error), ("tensor", "model.safetensors".to_owned(), name.to_owned()));
            let message = error.to_string();
            assert!(message.contains(&format!("{len} elements from element {first}")), "{message}");
            assert!(message.contains("found 3000 elements"), "{message}");
            assert!(out.iter().all(|v| *v == -1.0));
        }
    }
}

#[test]
fn the_first_non_finite_element_is_found() {
    let folder = Folder::new();
    for (dtype, size, nan, infinity) in [
        ("F32", 4, &[0, 0, 0xc0, 0x7f][..], &[0, 0, 0x80, 0xff][..]),
        ("F16", 2, &[1, 0x7c], &[0, 0xfc]),
        ("BF16", 2, &[0x81, 0x7f], &[0x80, 0xff]),
    ] {
        for (at, bad) in [(0, nan), (1023, infinity), (1024, nan), (2999, infinity)] {
            let mut data = [0xff, 0x7b, 0xff, 0x7b].repeat(3000 * size / 4);
            data[at * size..][..size].copy_from_slice(bad);
            data[2999 * size..].copy_from_slice(bad);
            folder.write("model.safetensors", file(&[("w", dtype, &[3000], data)]));
            assert_eq!(folder.open().unwrap().tensor("w").unwrap().first_non_finite().unwrap(), Some(at), "{dtype}");
        }
    }
}

#[test]
fn other_dtypes_are_listed_and_refused_as_floats() {
    let folder = Folder::new();
    let path = folder.write(
        "model.safetensors",
        file(&[
            ("embeddings.position_ids", "I64", &[1, 4], vec![0; 32]),
            ("scale", "F8_E8M0", &[2], vec![0; 2]),
            ("weight", "F32", &[1], vec![0; 4]),
        ]),
    );
    let checkpoint = folder.open().unwrap();
    assert_eq!(checkpoint.names().collect::<Vec<_>>(), ["embeddings.position_ids", "scale", "weight"]);
    assert_eq!(checkpoint.files().collect::<Vec<_>>(), [path]);
    assert_eq!(checkpoint.total_bytes(), 38);
    for (name, dtype, bytes) in [("embeddings.position_ids", "I64", 32), ("scale", "F8_E8M0", 2)] {
        let tensor = checkpoint.get(name).unwrap();
        assert_eq!((tensor.dtype_name(), tensor.bytes().len()), (dtype, bytes));
        let errors = [
            checkpoint.tensor(name).unwrap_err(),
            tensor.dtype().unwrap_err(),
            tensor.to_f32().unwrap_err(),
            tensor.read_f32(0, &mut [0.0]).unwrap_err(),
            tensor.first_non_finite().unwrap_err(),
        ];
        for error in errors {
            assert_eq!(about(&error), ("tensor", "model.safetensors".to_owned(), name.to_owned()));
            assert!(error.to_string().contains(&format!("expected dtype F32, F16 or BF16, found dtype {dtype}")));
        }
    }
    assert!(checkpoint.get("bias").is_none());
    let error = checkpoint.tensor("bias").unwrap_err();
    assert_eq!(about(&error), ("tensor", "model.safetensors".to_owned(), "bias".to_owned()));
    assert!(error.to_string().contains("among 3 tensors"), "{error}");
}

#[test]
fn folders_without_weights_say_what_was_looked_for() {
    let folder = Folder::new();
    let name = folder.0.file_name().unwrap().to_str().unwrap().to_owned();
    let wanted = ["looked for model.safetensors, model.safetensors.index.json and a GGUF file"];
    refused("empty folder", folder.open(), &name, "", &wanted);

    let file = folder.write("pytorch_model.bin", "PK");
    let parts = [wanted[0], "pytorch_model.bin", "only safetensors is read", "save_file"];
    refused("PyTorch weights", folder.open(), &name, "", &parts);

    refused("a file for a folder", Checkpoint::open(&file), "pytorch_model.bin", "", &["folder"]);
    refused("a folder for a file", Checkpoint::open_file(&folder.0), &name, "", &["found a folder"]);
    let missing = folder.0.join("missing");
    for result in [Checkpoint::open(&missing), Checkpoint::open_file(&missing)] {
        assert_eq!(about(&result.unwrap_err()), ("io", "missing".to_owned(), String::new()));
    }
}

const INDEX: &str = "model.safetensors.index.json";

/// An index of these (tensor, shard) pairs.
fn index(pairs: &[(&str, &str)]) -> String {
    let map: Vec<_> = pairs.iter().map(|(tensor, shard)| format!("{tensor:?}: {shard:?}")).collect();
    format!(r#"{{"metadata": {{"total_size": 0}}, "weight_map": {{{}}}}}"#, map.join(", "))
}

#[test]
fn contradictory_indexes_are_refused() {
    let good = [("a", "1.safetensors"), ("b", "2.safetensors")];
    #[rustfmt::skip]
    let cases: Vec<(&str, String, &str, &str, &[&str])> = vec![
        ("empty", String::new(), INDEX, "", &["not a valid index"]),
        ("not JSON", "weights".to_owned(), INDEX, "", &["not a valid index", "line 1"]),
        ("no weight_map", r#"{"metadata": {}}"#.to_owned(), INDEX, "", &["weight_map"]),
        ("weight_map not a map", r#"{"weight_map": []}"#.to_owned(), INDEX, "", &["JSON object"]),
        ("shard not a name", r#"{"weight_map": {"a": 1}}"#.to_owned(), INDEX, "", &["tensor `a`"]),
        ("tensor named twice", index(&[good[0], good[0]]), INDEX, "", &["tensor `a`", "twice"]),
        ("missing shard", index(&[good[0], ("b", "3.safetensors")]), INDEX, "b", &["3.safetensors", "does not exist"]),
        ("tensor in no shard", index(&[good[0], good[1], ("c", "2.safetensors")]), INDEX, "c", &["2.safetensors", "no such tensor"]),
        ("tensor in the other shard", index(&[("b", "1.safetensors"), ("a", "2.safetensors")]), INDEX, "b", &["shard `1.safetensors`", "2.safetensors"]),
        ("tensor not in the index", index(&[good[0], ("b1", "b.safetensors")]), "b.safetensors", "b2", &["does not name"]),
        ("tensor in two shards", index(&[good[0], ("b", "dup.safetensors")]), "dup.safetensors", "a", &["1.safetensors", "one shard"]),
        ("broken shard", index(&[good[0], ("b", "cut.safetensors")]), "cut.safetensors", "b", &["within the 3 bytes"]),
    ];
    let folder = Folder::new();
    folder.write("1.safetensors", file(&[("a", "F32", &[1], vec![0; 4])]));
    folder.write("2.safetensors", file(&[("b", "F32", &[1], vec![0; 4])]));
    folder.write("b.safetensors", file(&[("b1", "F32", &[1], vec![0; 4]), ("b2", "F32", &[1], vec![0; 4])]));
    folder.write("dup.safetensors", file(&[("a", "F32", &[1], vec![0; 4]), ("b", "F32", &[1], vec![0; 4])]));
    let cut = file(&[("b", "F32", &[1], vec![0; 4])]);
    folder.write("cut.safetensors", &cut[..cut.len() - 1]);
    for (case, text, file, tensor, parts) in cases {
        folder.write(INDEX, text);
        refused(case, folder.open(), file, tensor, parts);
    }

    let outside = Folder::new();
    let stranger = outside.write("1.safetensors", file(&[("a", "F32", &[1], vec![0; 4])]));
    let sibling = format!("../{}/1.safetensors", outside.0.file_name().unwrap().to_str().unwrap());
    let absolute = stranger.to_str().unwrap();
    for shard in [
        &sibling,
        absolute,
        "",
        ".",
        "..",
        "./1.safetensors",
        "sub/1.safetensors",
        "1.safetensors/",
        "..\\1",
        "C:1",
        "a\0b",
    ] {
        folder.write(INDEX, index(&[("a", shard)]).replace("\\0", "\\u0000"));
        refused(shard, folder.open(), INDEX, "a", &["the name of a file in the folder"]);
    }
}

/// Three tensors, one of each float dtype, and their file.
fn three() -> Vec<(&'static str, &'static str, &'static [usize], Vec<u8>)> {
    vec![
        ("layer.0.weight", "F32", &[2, 3], f32s(&[1.0, -2.5, 3.0, f32::from_bits(7), 0.1, -0.0])),
        ("layer.0.bias", "BF16", &[3], u16s(&[0x3f80, 0x0001, 0xc2f7])),
        ("norm", "F16", &[1, 2], u16s(&[0x3c00, 0x8001])),
    ]
}

#[test]
fn shards_equal_the_single_file_and_survive_release() {
    let (single, sharded) = (Folder::new(), Folder::new());
    let tensors = three();
    single.write("model.safetensors", file(&tensors));
    sharded.write("x-1.safetensors", file(&tensors[..2]));
    sharded.write("x-2.safetensors", file(&tensors[2..]));
    let shard = |name: &str| if name == "norm" { "x-2.safetensors" } else { "x-1.safetensors" };
    sharded.write(INDEX, index(&tensors.iter().map(|t| (t.0, shard(t.0))).collect::<Vec<_>>()));

    let content = |checkpoint: &Checkpoint| -> BTreeMap<String, (Vec<usize>, Dtype, Vec<u32>)> {
        let of = |t: &Tensor| (t.shape().to_vec(), t.dtype().unwrap(), bits(&t.to_f32().unwrap()));
        checkpoint.names().map(|name| (name.to_owned(), of(checkpoint.tensor(name).unwrap()))).collect()
    };
    let (one, two) = (single.open().unwrap(), sharded.open().unwrap());
    let expected = content(&one);
    assert_eq!(expected["norm"], (vec![1, 2], Dtype::F16, bits(&[1.0, -(2f32.powi(-24))])));
    assert_eq!(content(&two), expected);
    assert_eq!((one.files().len(), two.files().len()), (1, 2));
    assert_eq!(one.total_bytes(), two.total_bytes());
    assert_eq!(two.tensor("norm").unwrap().file(), sharded.0.join("x-2.safetensors"));

    two.release_pages();
    assert_eq!(content(&two), expected);
    let kept = two.get("norm").unwrap().clone();
    drop(two);
    assert_eq!(bits(&kept.to_f32().unwrap()), expected["norm"].2);
    let error = one.tensor("head").unwrap_err();
    assert_eq!(about(&error).1, "model.safetensors");
    let error = sharded.open().unwrap().tensor("head").unwrap_err();
    assert_eq!(about(&error).1, INDEX);
}

#[test]
fn the_single_file_comes_before_the_index() {
    let folder = Folder::new();
    folder.write("model.safetensors", file(&three()));
    folder.write(INDEX, "not an index");
    assert_eq!(folder.open().unwrap().names().len(), 3);
}

#[test]
fn checkpoints_are_shared_between_threads() {
    fn shared<T: Send + Sync + 'static>() {}
    shared::<Checkpoint>();
    shared::<Tensor>();
}

/// Opens a mutant: any outcome but a panic, and what is accepted must agree with the `safetensors` crate.
fn open_mutant(path: &Path, bytes: &[u8]) -> bool {
    // Written in place: emptying the file first, as `fs::write` does, makes some file systems wait for the disk.
    let mut file = fs::OpenOptions::new().create(true).truncate(false).write(true).open(path).unwrap();
    file.write_all(bytes).unwrap();
    file.set_len(bytes.len() as u64).unwrap();
    let Ok(checkpoint) = Checkpoint::open_file(path) else { return false };
    let reference = safetensors::SafeTensors::deserialize(bytes).unwrap();
    assert_eq!(checkpoint.names().len(), reference.len());
    for (name, view) in reference.iter() {
        let tensor = checkpoint.get(name).unwrap();
        assert_eq!((tensor.shape(), tensor.bytes()), (view.shape(), view.data()));
        assert_eq!(tensor.dtype_name(), view.dtype().to_string());
        assert_eq!(tensor.len(), view.shape().iter().product::<usize>());
        if tensor.dtype().is_ok() {
            assert_eq!(tensor.to_f32().unwrap().len(), tensor.len());
            tensor.first_non_finite().unwrap();
        }
    }
    true
}

#[test]
fn no_mutation_of_the_header_panics() {
    let folder = Folder::new();
    let path = folder.0.join("mutant.safetensors");
    let valid = file(&three());
    assert!(open_mutant(&path, &valid));
    let header = 8 + usize::from(valid[0]) + 256 * usize::from(valid[1]);
    let (mut mutants, mut accepted) = (0, 0);
    let mut try_one = |bytes: &[u8]| {
        mutants += 1;
        accepted += usize::from(open_mutant(&path, bytes));
    };
    for at in 0..header {
        for byte in (0..8).map(|bit| valid[at] ^ (1 << bit)).chain(*b"09-[]{}\",: \\\0\xff") {
            let mut mutant = valid.clone();
            mutant[at] = byte;
            try_one(&mutant);
        }
        let mut shorter = valid.clone();
        shorter.remove(at);
        try_one(&shorter);
        let mut longer = valid.clone();
        longer.insert(at, b'1');
        try_one(&longer);
    }
    for end in 0..valid.len() {
        try_one(&valid[..end]);
    }
    assert!(mutants > 4000, "{mutants}");
    assert!(accepted > 100 && accepted < mutants / 2, "{accepted} of {mutants}");
}
