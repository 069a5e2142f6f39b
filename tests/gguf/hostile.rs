//! Files that are wrong: an error that names the place, never a panic, never memory that the file has no bytes for.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fs;
use std::path::Path;

use kin_infer::modules::ModelFolder;
use kin_infer::tokenizer::TextTokenizer;
use kin_infer::weights::gguf::Value;
use kin_infer::weights::{Checkpoint, GgufFile};
use kin_infer::{BertConfig, BertModel, InferError};

use super::writer::{ARRAY, BOOL, F32, Gguf, TEXT, U32, text};
use super::{Folder, fixture};

/// The system's allocator, which notes the largest request of each thread.
struct Noting;

thread_local! {
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

fn note(size: usize) {
    // A thread that is ending has no cell any more.
    let _ = LARGEST.try_with(|largest| largest.set(largest.get().max(size)));
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Noting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: forwarded.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: forwarded.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note(size);
        // SAFETY: forwarded.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Noting = Noting;

/// Opens bytes as a file, and reads all that it has.
fn open(folder: &Folder, bytes: &[u8]) -> Result<GgufFile, InferError> {
    let path = folder.write("m.gguf", bytes);
    LARGEST.set(0);
    let file = GgufFile::open(&path);
    // A table of tensors or of keys takes a few times the bytes that describe them.
    assert!(LARGEST.get() <= 4096 + 16 * bytes.len(), "{} bytes for a file of {}", LARGEST.get(), bytes.len());
    let file = file?;
    for key in file.keys() {
        walk(file.get(key).unwrap());
    }
    let checkpoint = Checkpoint::open_gguf(&path)?;
    for name in checkpoint.names() {
        let tensor = checkpoint.get(name).unwrap();
        if let Ok(dtype) = tensor.dtype() {
            assert_eq!(dtype.bytes_of(tensor.shape()), Some(tensor.bytes().len()));
            tensor.first_non_finite().unwrap();
        }
    }
    Ok(file)
}

fn walk(value: Value) {
    match value {
        Value::Array(array) => assert_eq!(array.iter().map(walk).count(), array.len()),
        other => drop((other.as_number(), other.as_size(), other.as_text(), other.as_flag())),
    }
}

/// A small file with every kind of value, arrays of arrays, and three tensors.
fn sample() -> Gguf {
    let mut file = Gguf::new("bert");
    for (kind, size) in [(0, 1), (1, 1), (2, 2), (3, 2), (4, 4), (5, 4), (6, 4), (7, 1), (10, 8), (11, 8), (12, 8)] {
        file.pair(&format!("k{kind}"), kind, &vec![1; size]);
        let mut array = u32::to_le_bytes(kind).to_vec();
        array.extend(3u64.to_le_bytes());
        array.extend(vec![1; 3 * size]);
        file.pair(&format!("a{kind}"), ARRAY, &array);
    }
    let mut nested = ARRAY.to_le_bytes().to_vec();
    nested.extend(2u64.to_le_bytes());
    for _ in 0..2 {
        nested.extend(U32.to_le_bytes());
        nested.extend(1u64.to_le_bytes());
        nested.extend(7u32.to_le_bytes());
    }
    file.pair("nested", ARRAY, &nested).texts("texts", &["one", "", "three"]).size("general.alignment", 32);
    file.floats("a", &[4, 2], &[0.5; 8]).floats("b", &[3], &[1.0; 3]).floats("c", &[], &[2.0]);
    file
}

#[test]
fn a_sample_is_read() {
    let folder = Folder::new();
    let file = open(&folder, &sample().bytes()).unwrap();
    assert_eq!((file.version(), file.architecture().unwrap()), (3, "bert"));
    assert_eq!(file.get("k0"), Some(Value::Unsigned(1)));
    assert_eq!(file.get("k1"), Some(Value::Signed(1)));
    assert_eq!(file.get("k3"), Some(Value::Signed(0x0101)));
    assert_eq!(file.get("k7"), Some(Value::Flag(true)));
    assert_eq!(file.get("k10"), Some(Value::Unsigned(0x0101_0101_0101_0101)));
    assert_eq!(file.get("k6"), Some(Value::Float(f32::from_bits(0x0101_0101).into())));
    assert_eq!(file.get("k12"), Some(Value::Float(f64::from_bits(0x0101_0101_0101_0101))));
    assert_eq!(file.texts("texts").unwrap().unwrap(), ["one", "", "three"]);
    assert_eq!(file.numbers("a4").unwrap().unwrap(), [f64::from(0x0101_0101); 3]);
    let nested = file.get("nested").unwrap().as_array().unwrap();
    let inner: Vec<usize> = nested
        .iter()
        .flat_map(|v| v.as_array().unwrap().iter().map(|v| v.as_size().unwrap()).collect::<Vec<_>>())
        .collect();
    assert_eq!(inner, [7, 7]);
    assert_eq!((file.shape("a"), file.shape("c"), file.shape("d")), (Some(&[2, 4][..]), Some(&[][..]), None));
    assert!(
        file.size("k1").is_ok() && file.size("k6").is_err() && file.text("k0").is_err() && file.flag("k0").is_err()
    );
    let mut second = sample();
    second.version = 2;
    assert_eq!(open(&folder, &second.bytes()).unwrap().version(), 2);
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let folder = Folder::new();
    let bytes = sample().bytes();
    for length in 0..bytes.len() {
        assert!(open(&folder, &bytes[..length]).is_err(), "{length} of {} bytes", bytes.len());
    }
}

#[test]
fn no_byte_of_a_header_makes_a_panic() {
    let folder = Folder::new();
    let (bytes, header) = (sample().bytes(), sample().header().len());
    let mut refused = 0;
    for at in 0..header {
        for value in [bytes[at] ^ 0xff, bytes[at] ^ 1, bytes[at].wrapping_add(1), 0, 0x7f, 0xff] {
            let mut changed = bytes.clone();
            changed[at] = value;
            refused += usize::from(open(&folder, &changed).is_err());
        }
    }
    assert!(refused > header, "{refused}");
}

/// The whole way: configuration, modules, tokenizer, weights. What is wrong is an error somewhere on it.
#[test]
fn no_byte_of_a_models_header_makes_a_panic() {
    let folder = Folder::new();
    for name in ["gguf-bert-base-q8_0.gguf", "gguf-phi3-base-q8_0.gguf"] {
        let bytes = fs::read(fixture(name)).unwrap();
        let header = bytes.len() - Checkpoint::open_gguf(&fixture(name)).unwrap().total_bytes() as usize;
        let path = folder.0.join("m.gguf");
        for at in 0..header.min(bytes.len()) {
            let mut changed = bytes.clone();
            changed[at] ^= if at % 2 == 0 { 0xff } else { 1 };
            fs::write(&path, &changed).unwrap();
            use_all(&path);
        }
    }
}

fn use_all(path: &Path) {
    let _ = ModelFolder::read(path);
    let _ = TextTokenizer::from_folder(path);
    if let Ok(config) = BertConfig::from_folder(path) {
        let _ = config.effective_max_seq_len();
        let _ = BertModel::load(path, config);
    }
}

fn assert_refused(folder: &Folder, bytes: &[u8], expected: &str) {
    let Err(error) = open(folder, bytes) else { panic!("no error: {expected}") };
    assert!(matches!(error, InferError::ModelError { .. } | InferError::TensorError { .. }), "{error:?}");
    assert!(error.to_string().contains(expected), "{expected}: {error}");
}

#[test]
fn malformed_headers_are_refused_by_place_and_number() {
    let folder = Folder::new();
    let refused = |file: &Gguf, expected: &str| assert_refused(&folder, &file.bytes(), expected);
    let with = |change: &dyn Fn(&mut Gguf)| {
        let mut file = sample();
        change(&mut file);
        file
    };
    assert_refused(&folder, b"", "an empty file");
    assert_refused(&folder, b"GGU", "does not begin with `GGUF`");
    assert_refused(&folder, b"{\"a\": 1}........", "does not begin with `GGUF`");
    refused(&with(&|f| f.version = 1), "GGUF version 1, expected 2 or 3");
    refused(&with(&|f| f.version = 4), "GGUF version 4");
    refused(&with(&|f| f.version = 3u32.swap_bytes()), "big-endian");
    for many in [u64::MAX, 1 << 62, 1 << 32, 1000] {
        refused(&with(&|f| f.counts = Some((many, f.pairs.len() as u64))), &format!("{many} tensors at offset 8"));
        refused(&with(&|f| f.counts = Some((3, many))), &format!("{many} metadata entries at offset 16"));
    }
    refused(
        &with(&|f| {
            f.pair("k0", BOOL, &[1]);
        }),
        "the metadata key `k0` stands twice",
    );
    refused(
        &with(&|f| {
            f.pair("k", 13, &[1]);
        }),
        "`k`: expected a type of value from 0 to 12",
    );
    refused(
        &with(&|f| {
            f.pair("k", BOOL, &[2]);
        }),
        "expected 0 or 1",
    );
    refused(
        &with(&|f| {
            f.pair("general.alignment2", F32, &[0; 3]);
        }),
        "not valid",
    );
    for length in [u64::MAX, 1 << 40, 100_000] {
        let long = length.to_le_bytes();
        refused(
            &with(&|f| {
                f.pair("k", TEXT, &long);
            }),
            &format!("`k`: {length} bytes of a text"),
        );
        let array = |kind: u32| [&kind.to_le_bytes()[..], &long].concat();
        for kind in [0, U32, TEXT, ARRAY, 12] {
            refused(
                &with(&|f| {
                    f.pair("k", ARRAY, &array(kind));
                }),
                &format!("`k`: {length} elements of an array"),
            );
        }
    }
    let mut deep = Vec::new();
    for _ in 0..9 {
        deep.extend(ARRAY.to_le_bytes());
        deep.extend(1u64.to_le_bytes());
    }
    refused(
        &with(&|f| {
            f.pair("k", ARRAY, &deep);
        }),
        "deeper than",
    );
    let not_utf8 = [&2u64.to_le_bytes()[..], &[0xff, 0xfe]].concat();
    refused(
        &with(&|f| f.pairs.insert(0, [&not_utf8[..], &[0, 0, 0, 0, 1]].concat())),
        "metadata key at offset 24 is not UTF-8",
    );
    refused(&with(&|f| f.infos.insert(0, not_utf8.clone())), "is not UTF-8");
    // A value that is no UTF-8 is an error where a text is asked for.
    let file = open(
        &folder,
        &with(&|f| {
            f.pair("general.name", TEXT, &not_utf8);
        })
        .bytes(),
    )
    .unwrap();
    assert!(
        file.text("general.name")
            .unwrap_err()
            .to_string()
            .contains("`general.name` is \"\\xff\\xfe\", expected a text")
    );
}

#[test]
fn wrong_alignments_are_refused() {
    let folder = Folder::new();
    for alignment in [0, 3, 24, 1 << 21, u32::MAX] {
        let mut file = Gguf::new("bert");
        file.size("general.alignment", alignment);
        let expected = format!("`general.alignment` is {alignment}, expected a power of two up to 2^20");
        assert_refused(&folder, &file.bytes(), &expected);
    }
    let mut file = Gguf::new("bert");
    file.pair("general.alignment", TEXT, &text("32"));
    assert_refused(&folder, &file.bytes(), "`general.alignment` is \"32\"");
    let mut file = Gguf::new("bert");
    file.size("general.alignment", 64).floats("a", &[4], &[0.5; 4]).floats("b", &[4], &[0.5; 4]);
    let mut bytes = file.header();
    bytes.resize(bytes.len().next_multiple_of(64), 0);
    bytes.extend(&file.data);
    assert_refused(&folder, &bytes, "tensor `b`: expected data at offset 64");
}

#[test]
fn wrong_tensors_are_refused_by_name() {
    let folder = Folder::new();
    let cases: [(&[u64], u32, u64, &str); 16] = [
        (&[4], 0, 64, "expected data at offset 32, the multiple of 32 where the tensor before ends, found a hole"),
        (&[8], 0, 0, "found an overlap: offset 0"),
        (&[4], 0, 33, "found a hole: offset 33"),
        (&[1 << 20], 0, 32, "expected data within the 64 bytes after the header"),
        (&[4], 0, u64::MAX, "an offset that can be addressed"),
        (&[u64::MAX, 2], 0, 32, "whose size overflows"),
        (&[1 << 32, 1 << 32], 0, 32, "whose size overflows"),
        (&[1 << 62], 0, 32, "an offset that can be addressed"),
        (&[1, 1, 1, 1, 1], 0, 32, "at most 4 dimensions"),
        (&[31], 8, 32, "rows of whole blocks of 32, found Q8_0 [31]"),
        (&[], 8, 32, "rows of whole blocks of 32"),
        (&[128], 12, 32, "rows of whole blocks of 256"),
        (&[4], 99, 32, "found type 99"),
        (&[4], u32::MAX, 32, "found type 4294967295"),
        (
            &[256],
            10,
            32,
            "expected one of the types F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K, found Q2_K",
        ),
        (&[256], 16, 32, "found type 16"),
    ];
    for (dimensions, kind, offset, expected) in cases {
        let mut file = Gguf::new("bert");
        file.floats("first", &[8], &[0.5; 8]).info("second", dimensions, kind, offset);
        file.data.resize(64, 0);
        assert_refused(&folder, &file.bytes(), expected);
        let Err(error) = open(&folder, &file.bytes()) else { panic!() };
        assert!(matches!(&error, InferError::TensorError { tensor, .. } if tensor == "second"), "{error}");
    }
    let mut file = Gguf::new("bert");
    file.floats("same", &[8], &[0.5; 8]).floats("same", &[8], &[0.5; 8]);
    assert_refused(&folder, &file.bytes(), "tensor `same`: expected each name once");
    // Whole numbers are listed, and refused as floats.
    let mut file = Gguf::new("bert");
    file.info("ids", &[4], 26, 0).data.resize(16, 0);
    open(&folder, &file.bytes()).unwrap();
    let checkpoint = Checkpoint::open(&folder.0).unwrap();
    assert_eq!(checkpoint.get("ids").unwrap().dtype_name(), "I32");
    assert!(checkpoint.tensor("ids").unwrap_err().to_string().contains("found dtype I32"));
}
