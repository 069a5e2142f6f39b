//! `embed --input FOLDER`: what is read, how it is cut.

mod common;

use std::path::Path;
use std::time::{Duration, Instant};

use common::runs::*;
use common::*;
use serde_json::Value;

/// A folder of sources with what a walk has to do with.
fn sources(folder: &Path) {
    let write = |name: &str, text: &[u8]| {
        let path = folder.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    let long: String =
        (0..40).map(|i| format!("fn main {}\n{}", "number ".repeat(i % 6), "\n".repeat(i % 3))).collect();
    write("src/main.rs", long.as_bytes());
    write("src/b/deep.rs", b"hello world\r\nsearching\r\n");
    write("a.txt", b"\xef\xbb\xbfhello");
    write("blank.txt", b"\n \n");
    write("z wide.txt", format!("hello\n{}\nworld\n", "the parser ".repeat(30)).as_bytes());
    write("image.png", b"\x89PNG\0\0text");
    write("latin1.txt", b"hello\nna\xefve\n");
    write(".gitignore", b"built/\n*.log\n");
    write("built/out.rs", b"hello");
    write("src/run.log", b"hello");
    write(".hidden/x.rs", b"hello");
}

#[test]
fn a_folder_becomes_pieces_with_paths_and_lines() {
    let folder = scratch("folder");
    sources(&folder);
    let files = run(&["embed", "--model", &model(), "--split", "none", "--input", &folder.display().to_string()]);
    let ids: Vec<Value> = files.expect(1).json().iter().map(|r| r["id"].clone()).collect();
    assert_eq!(ids, ["a.txt", "src/b/deep.rs", "src/main.rs", "z wide.txt"]);
    // The output may lie in the folder: neither it nor what is beside it is input.
    let output = folder.join("out.jsonl");
    let cache = folder.join("rows").display().to_string();
    let more = ["--resume", "--counts", "--cache", &cache];
    let ran = embed(&folder, &output, &more).expect(1);
    assert!(ran.stderr.contains("latin1.txt: not UTF-8 at byte 8, in line 2"), "{}", ran.stderr);
    assert!(ran.stderr.contains("2 files hold no text"), "{}", ran.stderr);
    assert!(ran.stderr.contains("1 cut to the window, 1 failed"), "{}", ran.stderr);
    let first = std::fs::read_to_string(&output).unwrap();
    let rows: Vec<Value> = first.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let ids: Vec<&str> = rows.iter().map(|r| r["id"].as_str().unwrap()).collect();
    assert_eq!(ids[..2], ["a.txt:1-1", "src/b/deep.rs:1-2"]);
    assert_eq!(ids[ids.len() - 3..], ["z wide.txt:1-1", "z wide.txt:2-2", "z wide.txt:3-3"]);
    let mut last = 0;
    for (row, id) in rows.iter().zip(&ids) {
        let (path, lines) = id.rsplit_once(':').unwrap();
        let (from, to) = lines.split_once('-').unwrap();
        let (from, to): (usize, usize) = (from.parse().unwrap(), to.parse().unwrap());
        let text = std::fs::read_to_string(folder.join(path)).unwrap();
        let text = text.trim_start_matches('\u{feff}').replace("\r\n", "\n");
        let lines: Vec<&str> = text.lines().collect();
        let piece = lines[from - 1..to].join("\n");
        let alone = run(&["embed", "--model", &model(), "--counts", "--", &piece]).expect(0).json().swap_remove(0);
        for key in ["embedding", "token_count", "truncated"] {
            assert_eq!(row[key], alone[key], "{id}");
        }
        assert_eq!(row["truncated"], *id == "z wide.txt:2-2", "{id}");
        if path == "src/main.rs" {
            assert!(lines[last..from - 1].iter().all(|l| l.trim().is_empty()), "{id}: a line is left out");
            // As many lines as fit: the next one would be too much.
            if let Some(next) = lines[to..].iter().position(|l| !l.is_empty()) {
                let longer = lines[from - 1..=to + next].join("\n");
                let longer = run(&["embed", "--model", &model(), "--counts", "--", &longer]).expect(0).json();
                assert_eq!(longer[0]["truncated"], true, "{id}");
            }
            last = to;
        }
    }
    assert_eq!(last, std::fs::read_to_string(folder.join("src/main.rs")).unwrap().trim_end().lines().count());
    assert!(embed(&folder, &output, &more).expect(1).stderr.contains("nothing is left to do"));
    assert_eq!(std::fs::read_to_string(&output).unwrap(), first);
}

/// What an output's files are called is left out, and not what only begins so.
#[test]
fn files_beside_the_output_are_read() {
    let folder = scratch("beside");
    for name in
        ["vectors.rs", "vectors.ids.txt", "rows.rs", "vectors.ids", "vectors.offsets.partial", "vectors.journal"]
    {
        std::fs::write(folder.join(name), "hello\n").unwrap();
    }
    std::fs::remove_file(folder.join("vectors.journal")).unwrap();
    let (output, cache) = (folder.join("vectors"), folder.join("rows").display().to_string());
    embed(&folder, &output, &["--split", "none", "--cache", &cache, "--resume"]).expect(0);
    let text = std::fs::read_to_string(&output).unwrap();
    let ids: Vec<Value> = text.lines().map(|l| serde_json::from_str::<Value>(l).unwrap()["id"].clone()).collect();
    assert_eq!(ids, ["rows.rs", "vectors.ids.txt", "vectors.rs"]);
}

/// A killed run of a folder goes on amid a file.
#[test]
fn a_folder_is_gone_on_with_amid_a_file() {
    let folder = scratch("folder_kills");
    let corpus = folder.join("corpus");
    sources(&corpus);
    let lines: String = (0..600).map(|i| format!("fn main {}\n", "number ".repeat(i % 5))).collect();
    std::fs::write(corpus.join("long.rs"), lines).unwrap();
    let whole = folder.join("out.whole");
    let start = Instant::now();
    embed(&corpus, &whole, &["--checkpoint", "3"]).expect(1);
    let time = start.elapsed();
    let output = folder.join("out.jsonl");
    let more = ["--checkpoint", "3", "--resume"];
    let mut random = Random(7);
    let (mut kills, mut amid) = (0, 0);
    let remove =
        || ["out.jsonl", "out.jsonl.journal"].iter().for_each(|f| std::fs::remove_file(folder.join(f)).unwrap());
    // Killed at random until three have left the long file half done; none of them may have come to the end.
    while amid < 3 {
        let mut child = command(&corpus, &output, &more).spawn().unwrap();
        std::thread::sleep(Duration::from_micros(random.below(time.as_micros() as u64)));
        child.kill().unwrap();
        if ended(child).code != -1 {
            remove();
            continue;
        }
        kills += 1;
        assert!(kills < 200, "{amid} of {kills} kills left a file half done");
        // Pieces of the record that was begun last; the long one is cut into more than any other.
        let half_done = folder.join("out.jsonl.journal").exists()
            && journal(&output).last().is_some_and(|e| e["batch"]["batch"]["place"]["pieces"].as_u64() > Some(20));
        if half_done {
            let mut child = command(&corpus, &output, &more).spawn().unwrap();
            drop(child.stdin.take());
            let ran = ended(child).expect(1);
            assert!(ran.stderr.contains("texts are there already"), "{}", ran.stderr);
            assert_eq!(std::fs::read(&output).unwrap(), std::fs::read(&whole).unwrap());
            remove();
            amid += 1;
        }
    }
    println!("{kills} kills, {amid} of them amid a file");
}

#[test]
fn functions_are_pieces_where_the_build_finds_them() {
    let folder = scratch("functions");
    let text = "use a;\n\n/// One.\nfn one() {\n    a()\n}\nfn two() {\n    b()\n}\n";
    std::fs::write(folder.join("a.rs"), text).unwrap();
    std::fs::write(folder.join("b.txt"), text).unwrap();
    let input = folder.display().to_string();
    let ran = run(&["embed", "--model", &model(), "--split", "functions", "--input", &input]);
    if cfg!(feature = "functions") {
        let ids: Vec<Value> = ran.expect(0).json().iter().map(|r| r["id"].clone()).collect();
        assert_eq!(ids[..3], ["a.rs:1-1", "a.rs:3-6", "a.rs:7-9"]);
        assert_eq!(ids[3].as_str().unwrap().split_once(':').unwrap().0, "b.txt");
    } else {
        let ran = ran.expect(2);
        assert!(ran.stderr.contains("kin-infer-cli/functions"), "{}", ran.stderr);
    }
}
