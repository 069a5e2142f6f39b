//! `embed`: values, ids, order, formats, and inputs that fail.

mod common;

use std::io::{Read, Write};
use std::path::Path;
use std::process::Stdio;

use common::*;
use serde_json::{Value, json};

fn model() -> String {
    fixture("st-tiny").display().to_string()
}

/// The texts of st-tiny as JSON lines, with ids t0, t1, ...
fn jsonl() -> (String, usize) {
    let texts: Vec<String> =
        serde_json::from_str(&std::fs::read_to_string(fixture("st-tiny/texts.json")).unwrap()).unwrap();
    let line = |(i, text): (usize, &String)| format!("{}\n", json!({"id": format!("t{i}"), "text": text}));
    (texts.iter().enumerate().map(line).collect(), texts.len())
}

fn check(lines: &[Value], kind: &str) {
    for (i, line) in lines.iter().enumerate() {
        assert_eq!(line["id"], format!("t{i}"));
        let reference = expected("st-tiny", &format!("{kind}.{i}")).unwrap();
        assert_close(&format!("{kind}.{i}"), floats(&line["embedding"]).into_iter().map(f64::from), &reference);
    }
}

#[test]
fn vectors_are_the_reference_and_ids_keep_their_order() {
    let (input, n) = jsonl();
    for (kind, prompt) in [("text", &[][..]), ("text", &["--no-prompt"]), ("query", &["--prompt", "query"])] {
        let model = model();
        let arguments = [&["embed", "--model", &model, "--input", "-", "--input-format", "jsonl"], prompt].concat();
        let ran = run_with_input(&arguments, input.as_bytes()).expect(0);
        assert_eq!(ran.json().len(), n);
        check(&ran.json(), kind);
        // The last text is longer than the window: told, once.
        assert_eq!(ran.stderr.matches("longer than 24 tokens").count(), 1, "{}", ran.stderr);
    }
    let by_text = run(&["embed", "--model", &model(), "--prompt-text", "query: ", "Hello world"]).expect(0);
    let by_name = run(&["embed", "--model", &model(), "--prompt", "query", "Hello world"]).expect(0);
    assert_eq!(by_text.stdout, by_name.stdout);
}

#[test]
fn files_are_whole_and_npy_has_the_same_bits() {
    let folder = scratch("files");
    let (input, n) = jsonl();
    let (docs, lines, array) = (folder.join("docs.jsonl"), folder.join("out.jsonl"), folder.join("out.npy"));
    std::fs::write(&docs, input).unwrap();
    let path = |p: &Path| p.display().to_string();
    for out in [&lines, &array] {
        let arguments = ["embed", "--model", &model(), "--input", &path(&docs), "--output", &path(out), "--quiet"];
        let ran = run(&arguments).expect(0);
        assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("", ""));
    }
    let mut names: Vec<_> = std::fs::read_dir(&folder).unwrap().flatten().map(|e| e.file_name()).collect();
    names.sort();
    assert_eq!(names, ["docs.jsonl", "out.jsonl", "out.npy", "out.npy.ids"]);
    let text = std::fs::read_to_string(&lines).unwrap();
    let values: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    check(&values, "text");
    let bytes = std::fs::read(&array).unwrap();
    let header = String::from_utf8_lossy(&bytes[10..128]).to_string();
    assert_eq!((&bytes[..8], bytes[8], bytes[127]), (&b"\x93NUMPY\x01\x00"[..], 118, b'\n'));
    let dictionary = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({n}, 24), }}");
    assert_eq!(header.trim(), dictionary);
    let rows: Vec<u32> = bytes[128..].chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect();
    let from_json: Vec<u32> = values.iter().flat_map(|v| floats(&v["embedding"])).map(f32::to_bits).collect();
    assert_eq!(rows, from_json);
    let ids = std::fs::read_to_string(folder.join("out.npy.ids")).unwrap();
    assert_eq!(ids, (0..n).map(|i| format!("\"t{i}\"\n")).collect::<String>());
}

#[test]
fn ids_come_from_arguments_lines_or_records() {
    let id_list = |ran: Ran| ran.json().iter().map(|v| v["id"].clone()).collect::<Vec<_>>();
    assert_eq!(id_list(run(&["embed", "--model", &model(), "a", "b"]).expect(0)), ["0", "1"]);
    let text = run_with_input(&["embed", "--model", &model()], b"\xef\xbb\xbfa\r\n\nc").expect(0);
    let first = run(&["embed", "--model", &model(), "a", ""]).expect(0);
    assert_eq!(text.json()[0]["embedding"], first.json()[0]["embedding"], "byte order mark and CR are no text");
    assert_eq!(text.json()[1]["embedding"], first.json()[1]["embedding"]);
    assert_eq!(id_list(text), ["1", "2", "3"]);
    let records =
        "{\"id\": 7, \"text\": \"a\"}\n\n{\"text\": \"b\", \"more\": 1}\n{\"id\": \"x\\ty\", \"text\": \"c\"}\n";
    let jsonl = ["embed", "--model", &model(), "--input-format", "jsonl"];
    let ran = run_with_input(&jsonl, records.as_bytes()).expect(0);
    assert_eq!(id_list(ran), [json!(7), json!("3"), json!("x\ty")]);
}

#[test]
fn more_texts_than_a_window_keep_order_and_bits() {
    let input: String = (0..1100).map(|i| format!("{i} {}\n", "x ".repeat(i % 7))).collect();
    let ran = run_with_input(&["embed", "--model", &model()], input.as_bytes()).expect(0);
    let lines = ran.json();
    assert_eq!(lines.len(), 1100);
    let line_numbers = (1..=1100).map(|i| json!(i.to_string()));
    assert!(lines.iter().map(|l| l["id"].clone()).eq(line_numbers));
    let alone = run(&["embed", "--model", &model(), input.lines().nth(777).unwrap()]).expect(0);
    assert_eq!(alone.json()[0]["embedding"], lines[777]["embedding"]);
}

#[test]
fn unreadable_lines_are_named_and_the_others_delivered() {
    let ran = run_with_input(&["embed", "--model", &model()], b"good\nbad \xff\xfe\nfine\n").expect(1);
    assert_eq!(ran.json().len(), 2);
    assert!(ran.stderr.contains("stdin: line 2: not UTF-8 at byte 4"), "{}", ran.stderr);
    let jsonl = ["embed", "--model", &model(), "--input-format", "jsonl"];
    let records = "{\"text\": \"a\"}\n{\"text\": 1}\nnot json\n{\"id\": 1.5, \"text\": \"b\"}\n{\"text\": \"c\"}\n";
    let ran = run_with_input(&jsonl, records.as_bytes()).expect(1);
    assert_eq!(ran.json().len(), 2);
    for line in ["line 2:", "line 3:", "line 4: `id` is 1.5"] {
        assert!(ran.stderr.contains(line), "{line} in {}", ran.stderr);
    }
}

/// A token whose embedding overflows: texts with it fail by id, the others are delivered.
#[test]
fn a_text_that_overflows_fails_alone() {
    let folder = scratch("overflow");
    copy_folder(&fixture("st-tiny"), &folder);
    let file = folder.join("model.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    let start = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..start]).unwrap();
    let table =
        header.as_object().unwrap().iter().find(|(name, _)| name.ends_with("word_embeddings.weight")).unwrap().1;
    assert_eq!(table["dtype"], "F32");
    let width = table["shape"][1].as_u64().unwrap() as usize;
    let z = start + table["data_offsets"][0].as_u64().unwrap() as usize + 30 * width * 4;
    for i in 0..width {
        let value = if i % 2 == 0 { 3e38f32 } else { -3e38 };
        bytes[z + 4 * i..][..4].copy_from_slice(&value.to_le_bytes());
    }
    std::fs::write(&file, bytes).unwrap();
    let ran = run(&["embed", "--model", &folder.display().to_string(), "a", "z", "b"]).expect(1);
    assert_eq!(ran.json().iter().map(|v| v["id"].clone()).collect::<Vec<_>>(), ["0", "2"]);
    assert!(ran.stderr.contains("id 1: non-finite value first seen after "), "{}", ran.stderr);
    let whole = run(&["embed", "--model", &model(), "a", "b"]).expect(0);
    assert_eq!(ran.json()[1]["embedding"], whole.json()[1]["embedding"]);
}

#[test]
fn nothing_in_nothing_out() {
    let ran = run_with_input(&["embed", "--model", &model()], b"").expect(0);
    assert_eq!(ran.stdout, "");
    let out = scratch("empty").join("out.npy");
    run_with_input(&["embed", "--model", &model(), "--output", &out.display().to_string()], b"").expect(0);
    assert!(String::from_utf8_lossy(&std::fs::read(&out).unwrap()).contains("'shape': (0, 24)"));
    assert_eq!(std::fs::read(out.with_extension("npy.ids")).unwrap(), b"");
}

#[test]
fn fewer_dimensions_are_unit_vectors() {
    let ran = run(&["embed", "--model", &model(), "--dimensions", "8", "Hello world"]).expect(0);
    let vector = floats(&ran.json()[0]["embedding"]);
    let norm: f32 = vector.iter().map(|v| v * v).sum();
    assert!(vector.len() == 8 && (norm - 1.0).abs() < 1e-6, "{vector:?}");
    run(&["embed", "--model", &model(), "--dimensions", "25", "a"]).expect(1);
}

#[test]
fn failures_leave_files_alone() {
    let out = scratch("failures").join("out.jsonl");
    std::fs::write(&out, "before").unwrap();
    let output = out.display().to_string();
    let ran = run(&["embed", "--model", "no/such/folder", "--output", &output, "a"]).expect(1);
    assert!(ran.stdout.is_empty() && ran.stderr.contains("no/such/folder"), "{}", ran.stderr);
    let ran = run(&["embed", "--model", &model(), "--prompt", "nobody", "--output", &output, "a"]).expect(1);
    assert!(ran.stderr.contains("document, query"), "{}", ran.stderr);
    run(&["embed", "--model", &model(), "--input", "/no/such/file"]).expect(1);
    let impossible = if cfg!(target_os = "macos") { "cuda" } else { "metal" };
    let ran = run(&["embed", "--model", &model(), "--device", impossible, "a"]).expect(1);
    assert!(ran.stderr.contains(&format!("--device {impossible}: {impossible} backend: ")), "{}", ran.stderr);
    assert_eq!(std::fs::read_to_string(&out).unwrap(), "before");
    assert_eq!(std::fs::read_dir(out.parent().unwrap()).unwrap().count(), 1);
    for wrong in [
        &["embed", "a"][..],
        &["embed", "--model", &model(), "--format", "npy", "a"],
        &["embed", "--model", &model(), "--threads", "0", "a"],
        &["embed", "--model", &model(), "--prompt", "query", "--no-prompt", "a"],
        &["embed", "--model", &model(), "--input", "x", "a"],
        &["nonsense"],
    ] {
        assert!(run(wrong).expect(2).stdout.is_empty(), "{wrong:?}");
    }
}

/// As under `| head -1`: the reader goes after the first bytes.
#[test]
fn a_closed_pipe_ends_quietly() {
    let mut command = kin_infer();
    command.args(["embed", "--model", &model(), "--quiet"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || {
        let block = "a few words\n".repeat(1000);
        for _ in 0..20 {
            if input.write_all(block.as_bytes()).is_err() {
                break;
            }
        }
    });
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0; 10]).unwrap();
    drop(stdout);
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn options_that_would_do_nothing_are_refused() {
    let cases: [(&[&str], &str); 4] = [
        (&["--output", "-", "--resume"], "--resume needs --output FILE"),
        (&["--output", "-", "--restart"], "--restart needs --output FILE"),
        (&["--split-tokens", "9"], "--split-tokens needs --split"),
        (&["--split", "none", "--split-tokens", "9"], "--split-tokens needs --split"),
    ];
    for (options, expected) in cases {
        let ran = run(&[&["embed", "--model", &model()], options, &["a text"]].concat()).expect(2);
        assert!(ran.stderr.contains(expected) && ran.stdout.is_empty(), "{options:?}: {}", ran.stderr);
    }
}

/// A record is an object: its fields in a list would be taken one for another.
#[test]
fn records_that_are_arrays_are_refused() {
    let input = "[\"id\", \"text\"]\n{\"text\": \"good\"}\n [\"text\"]\n";
    let arguments = ["embed", "--model", &model(), "--input", "-", "--input-format", "jsonl"];
    let ran = run_with_input(&arguments, input.as_bytes()).expect(1);
    assert_eq!(ran.json().len(), 1);
    for line in [1, 3] {
        let expected = format!("line {line}: expected {{\"id\": ..., \"text\": ...}}: found an array");
        assert!(ran.stderr.contains(&expected), "{}", ran.stderr);
    }
}
