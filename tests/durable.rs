//! Durable files: whatever a kill leaves on disk, the finished files are those of an undisturbed run.

use std::path::{Path, PathBuf};

use kin_infer::InferError;
use kin_infer::durable::{Conflict, DurableFiles, Found, Locked, Part, Resumed, RowCache, RowKey, model_digest};

/// An empty folder of this test's own.
fn scratch(test: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("durable").join(test);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn identity(input: &str) -> [(String, String); 2] {
    [("version".to_string(), "1".to_string()), ("input".to_string(), input.to_string())]
}

const PARTS: [Part; 2] = [Part::with_head("", 8), Part::named(".ids")];
const BATCHES: u32 = 4;

/// Appends batch `n` to both parts: as many bytes as its number says, and a line.
fn batch(files: &mut DurableFiles<u32>, n: u32) {
    let numbers: Vec<u8> = (0..n).flat_map(|i| (i * n).to_le_bytes()).collect();
    files.append(0, &numbers).unwrap();
    files.append(1, format!("batch {n}\n").as_bytes()).unwrap();
}

/// Runs from wherever the journal is to the end, and tells from where.
fn run(target: &Path, until: u32) -> u32 {
    let mut next = 0;
    let locked = Locked::lock(target).unwrap();
    let resumed = locked.resume(&identity("a"), &PARTS, |n: u32| {
        assert_eq!(n, next, "batches come in order");
        next = n + 1;
    });
    let from = next;
    let Resumed::Unfinished(mut files) = resumed.unwrap() else { return from };
    while next < until {
        batch(&mut files, next);
        files.commit(&next).unwrap();
        next += 1;
    }
    if until == BATCHES {
        let head = files.appended(0).to_le_bytes().to_vec();
        files.finish(&[(0, head)], true).unwrap();
    }
    from
}

/// Every file of a folder with its bytes.
fn contents(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.file_name().unwrap().to_str().unwrap().to_string(), std::fs::read(path).unwrap()))
        .collect();
    files.sort();
    files
}

fn restore(folder: &Path, files: &[(String, Vec<u8>)]) {
    for entry in std::fs::read_dir(folder).unwrap() {
        std::fs::remove_file(entry.unwrap().path()).unwrap();
    }
    files.iter().for_each(|(name, bytes)| std::fs::write(folder.join(name), bytes).unwrap());
}

fn conflict<T: std::fmt::Debug>(result: kin_infer::Result<T>) -> Conflict {
    match result.unwrap_err() {
        InferError::RunConflict { conflict, .. } => conflict,
        other => panic!("{other}"),
    }
}

/// The files and the journal cut off anywhere: what a kill amid a write, or a power cut, leaves.
/// A read that fails once may succeed later: nothing is cut off.
#[cfg(unix)]
#[test]
fn bytes_that_cannot_be_read_now_are_kept() {
    let folder = scratch("unreadable");
    let target = folder.join("out");
    assert_eq!(run(&target, 3), 0);
    let (partial, aside) = (folder.join("out.partial"), folder.join("aside"));
    std::fs::rename(&partial, &aside).unwrap();
    std::fs::create_dir(&partial).unwrap(); // opens, and cannot be read
    let result = Locked::lock(&target).unwrap().resume(&identity("a"), &PARTS, |_: u32| {});
    assert!(matches!(&result, Err(InferError::IoError { .. })), "{result:?}");
    std::fs::remove_dir(&partial).unwrap();
    std::fs::rename(&aside, &partial).unwrap();
    assert_eq!(run(&target, BATCHES), 3);
}

/// A link to a file that is not there yet stays a link, and its target is the output.
#[cfg(unix)]
#[test]
fn a_dangling_link_is_followed() {
    let folder = scratch("dangling");
    let (real, link, other) = (folder.join("real"), folder.join("link"), folder.join("other"));
    std::os::unix::fs::symlink("real", &link).unwrap();
    std::os::unix::fs::symlink(&link, &other).unwrap();
    assert_eq!(run(&other, 2), 0);
    assert_eq!(run(&real, 3), 2);
    assert_eq!(run(&link, BATCHES), 3);
    assert!(link.is_symlink() && other.is_symlink() && !real.is_symlink());
    let plain = folder.join("plain");
    assert_eq!(run(&plain, BATCHES), 0);
    assert_eq!(std::fs::read(&real).unwrap(), std::fs::read(&plain).unwrap());
}

#[test]
fn torn_files_are_made_good() {
    let whole = scratch("torn/whole");
    assert_eq!(run(&whole.join("t"), BATCHES), 0);
    let expected = contents(&whole);
    assert_eq!(expected.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["t", "t.ids", "t.journal"]);
    let folder = scratch("torn/run");
    let target = folder.join("t");
    assert_eq!(run(&target, 3), 0);
    let left = contents(&folder);
    let names: Vec<_> = left.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["t.ids.partial", "t.journal", "t.partial"]);
    let (mut cuts, mut starts) = (0, std::collections::BTreeSet::new());
    for (i, (_, bytes)) in left.iter().enumerate() {
        // Lines of the journal differ in little: a third of their bytes, each line's other ones.
        for len in (0..=bytes.len()).step_by(if bytes.len() > 200 { 3 } else { 1 }) {
            let mut torn = left.clone();
            torn[i].1.truncate(len);
            restore(&folder, &torn);
            starts.insert(run(&target, BATCHES));
            assert_eq!(contents(&folder), expected, "{} cut at {len}", left[i].0);
            cuts += 1;
        }
    }
    assert_eq!(starts.into_iter().collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert!(cuts > 200, "{cuts} cuts");
}

/// A flipped byte anywhere, or bytes that were never committed: found by the hashes, and made again.
#[test]
fn bytes_that_changed_are_made_again() {
    let whole = scratch("flipped/whole");
    run(&whole.join("t"), BATCHES);
    let expected = contents(&whole);
    let folder = scratch("flipped/run");
    let target = folder.join("t");
    run(&target, 3);
    let left = contents(&folder);
    for (i, (name, bytes)) in left.iter().enumerate() {
        for at in (0..bytes.len()).step_by(5) {
            let mut changed = left.clone();
            changed[i].1[at] ^= 0x20;
            restore(&folder, &changed);
            // Another first line is another file: refused, never overwritten.
            if name == "t.journal" && at < 20 {
                assert_eq!(conflict(Locked::lock(&target)), Conflict::Foreign);
                assert_eq!(contents(&folder), changed);
                continue;
            }
            assert!(run(&target, BATCHES) <= 3);
            assert_eq!(contents(&folder), expected, "{name} changed at {at}");
        }
        let mut longer = left.clone();
        longer[i].1.extend_from_slice(b"half a batch");
        restore(&folder, &longer);
        assert_eq!(run(&target, BATCHES), 3, "{name}");
        assert_eq!(contents(&folder), expected, "{name} with more at its end");
    }
}

/// Between the last commit and the end: any of the renames done, or none.
#[test]
fn the_end_can_be_cut_short() {
    let folder = scratch("end");
    let target = folder.join("t");
    run(&target, BATCHES);
    let expected = contents(&folder);
    for renamed in [&[][..], &["t"], &["t.ids"]] {
        let state = expected.iter().map(|(name, bytes)| {
            let partial = name != "t.journal" && !renamed.contains(&name.as_str());
            (if partial { format!("{name}.partial") } else { name.clone() }, bytes.clone())
        });
        restore(&folder, &state.collect::<Vec<_>>());
        assert_eq!(run(&target, BATCHES), BATCHES);
        assert_eq!(contents(&folder), expected);
    }
    assert_eq!(Locked::lock(&target).unwrap().found().unwrap(), Found::Finished);
    std::fs::rename(&target, folder.join("t.partial")).unwrap();
    let found = Locked::lock(&target).unwrap().found().unwrap();
    assert_eq!(found, Found::Unfinished { batches: BATCHES as usize }, "a file lacks its name yet");
    std::fs::rename(folder.join("t.partial"), &target).unwrap();
    for (now, change) in [("is not there any more", None), ("has another length", Some(b"x"))] {
        let _ = std::fs::remove_file(&target);
        change.iter().for_each(|bytes| std::fs::write(&target, bytes).unwrap());
        let resumed = Locked::lock(&target).unwrap().resume(&identity("a"), &PARTS, |_: u32| {});
        assert!(matches!(conflict(resumed), Conflict::Lost { now: found, .. } if found == now));
    }
}

#[test]
fn an_output_made_of_scratch_parts() {
    let folder = scratch("made");
    let target = folder.join("t");
    let parts = [Part::scratch(".a"), Part::scratch(".b")];
    let begin = || Locked::lock(&target).unwrap().resume(&identity("a"), &parts, |_: u32| {}).unwrap();
    let Resumed::Unfinished(mut files) = begin() else { panic!() };
    files.append(0, b"one").unwrap();
    files.append(1, b"two").unwrap();
    files.commit(&0).unwrap();
    files.append(1, b"lost").unwrap();
    drop(files);
    let Resumed::Unfinished(mut files) = begin() else { panic!() };
    files
        .make(|mut file, readers| {
            for mut reader in readers.into_iter().rev() {
                std::io::copy(&mut reader, &mut file).map_err(|e| InferError::io("made", e))?;
            }
            Ok(())
        })
        .unwrap();
    files.finish(&[], false).unwrap();
    assert_eq!(contents(&folder), [("t".to_string(), b"twoone".to_vec())]);
}

/// What an earlier output left that is no part of this one goes, also where the end was cut short.
#[test]
fn what_is_stale_goes_with_the_names() {
    let folder = scratch("stale");
    let target = folder.join("t");
    for cut_short in [false, true] {
        std::fs::write(folder.join("t.offsets"), "of another output").unwrap();
        let mut files = Locked::lock(&target).unwrap().start::<u32>(&identity("a"), &PARTS).unwrap();
        batch(&mut files, 1);
        files.commit(&0).unwrap();
        files.remove_at_end(".offsets");
        files.finish(&[(0, vec![0; 8])], true).unwrap();
        assert!(!folder.join("t.offsets").exists());
        if cut_short {
            std::fs::write(folder.join("t.offsets"), "of another output").unwrap();
            let finished = Locked::lock(&target).unwrap().resume(&identity("a"), &PARTS, |_: u32| {}).unwrap();
            assert!(matches!(finished, Resumed::Finished) && !folder.join("t.offsets").exists());
        }
    }
}

/// A write that fails amid a batch, here at the system's limit on a file: nothing can be added after it, and a later run
/// goes on from the last commit.
#[cfg(unix)]
#[test]
fn nothing_follows_a_torn_write() {
    /// The folder of the child that meets the limit; unset in the tests' own process.
    const FOLDER: &str = "KIN_TEST_TORN_FOLDER";
    if let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) {
        let mut files = Locked::lock(&folder.join("t")).unwrap().start::<u32>(&identity("a"), &PARTS).unwrap();
        batch(&mut files, 0);
        files.commit(&0).unwrap();
        let full = files.append(0, &vec![7; 1 << 20]).unwrap_err();
        assert!(matches!(full, InferError::IoError { .. }), "{full}");
        assert_eq!(conflict(files.append(1, b"batch 1\n")), Conflict::Torn);
        assert_eq!(conflict(files.commit(&1)), Conflict::Torn);
        assert_eq!(conflict(files.make(|_, _| Ok(()))), Conflict::Torn);
        assert_eq!(conflict(files.finish(&[(0, vec![0; 8])], true)), Conflict::Torn);
        std::fs::write(folder.join("met"), "").unwrap();
        return;
    }
    let folder = scratch("append/run");
    let mut child = std::process::Command::new("sh");
    // In blocks of 512 bytes or 1 KiB. Where the signal of that limit is ignored, it is an error of `write`.
    child.args(["-c", "trap '' XFSZ; ulimit -f 64; exec \"$@\"", "sh"]).arg(std::env::current_exe().unwrap());
    child.args(["--exact", "nothing_follows_a_torn_write", "--nocapture"]).env(FOLDER, &folder);
    let output = child.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::remove_file(folder.join("met")).expect("the child met the limit");
    assert_eq!(run(&folder.join("t"), BATCHES), 1);
    let whole = scratch("append/whole");
    run(&whole.join("t"), BATCHES);
    assert_eq!(contents(&folder), contents(&whole));
}

#[test]
fn nothing_committed_leaves_nothing() {
    let folder = scratch("nothing");
    let target = folder.join("t");
    drop(Locked::lock(&target).unwrap());
    assert!(contents(&folder).is_empty());
    let mut files = Locked::lock(&target).unwrap().start::<u32>(&identity("a"), &PARTS).unwrap();
    batch(&mut files, 3);
    assert_eq!(contents(&folder).len(), 3);
    drop(files);
    assert!(contents(&folder).is_empty());
}

#[test]
fn what_stands_against_a_run_is_named() {
    let folder = scratch("conflicts");
    let target = folder.join("t");
    let held = Locked::lock(&target).unwrap();
    assert_eq!(conflict(Locked::lock(&target)), Conflict::Locked);
    drop(held);
    assert_eq!(conflict(Locked::lock(&folder)), Conflict::NotAFile);
    let absent = Locked::lock(&folder.join("no/t")).unwrap_err();
    assert!(matches!(absent, InferError::IoError { .. }), "{absent}");
    for foreign in [&b"Dear diary,\n"[..], &[&[0; 64][..], b"an image"].concat()] {
        std::fs::write(folder.join("t.journal"), foreign).unwrap();
        assert_eq!(conflict(Locked::lock(&target)), Conflict::Foreign);
        assert_eq!(std::fs::read(folder.join("t.journal")).unwrap(), foreign);
    }
    std::fs::remove_file(folder.join("t.journal")).unwrap();

    run(&target, 2);
    let locked = Locked::lock(&target).unwrap();
    assert_eq!(locked.found().unwrap(), Found::Unfinished { batches: 2 });
    let changed = conflict(locked.resume(&identity("b"), &PARTS, |_: u32| {}));
    let (what, recorded, found) = ("input".to_string(), "a".to_string(), "b".to_string());
    assert_eq!(changed, Conflict::Changed { what, recorded, found });
    assert_eq!(Locked::lock(&target).unwrap().found().unwrap(), Found::Unfinished { batches: 2 }, "nothing is lost");
    // Begun anew, with other parts: the old ones are gone.
    let files = Locked::lock(&target).unwrap().start::<u32>(&identity("b"), &PARTS[..1]).unwrap();
    let names: Vec<_> = contents(&folder).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["t.journal", "t.partial"]);
    drop(files);

    std::fs::write(&target, "protected").unwrap();
    let mut permissions = std::fs::metadata(&target).unwrap().permissions();
    permissions.set_readonly(true);
    std::fs::set_permissions(&target, permissions).unwrap();
    assert_eq!(conflict(Locked::lock(&target)), Conflict::ReadOnly);
}

/// Rows come back, in this session and the next; from a file torn at any byte come the whole ones.
#[test]
fn cached_rows_come_back_or_count_as_absent() {
    let folder = scratch("cache");
    let path = folder.join("rows");
    let key = |text: &str| RowKey::new(&identity("a"), text);
    let rows: [&[u8]; 4] = [b"first", b"", b"third row", b"4"];
    let text = |i: usize| format!("text {i}");
    {
        let mut cache = RowCache::open(&path).unwrap();
        assert_eq!(conflict(RowCache::open(&path)), Conflict::Locked);
        for (i, row) in rows.iter().enumerate() {
            assert_eq!(cache.get(&key(&text(i))).unwrap(), None);
            cache.put(key(&text(i)), row);
            assert_eq!(cache.get(&key(&text(i))).unwrap().unwrap(), *row);
            if i == 1 {
                cache.flush().unwrap();
            }
        }
        cache.flush().unwrap();
    }
    let whole = std::fs::read(&path).unwrap();
    for len in 0..=whole.len() {
        std::fs::write(&path, &whole[..len]).unwrap();
        let mut cache = RowCache::open(&path).unwrap();
        let found: Vec<_> = (0..4).map_while(|i| cache.get(&key(&text(i))).unwrap()).collect();
        assert_eq!(cache.len(), found.len());
        assert!(found.iter().zip(&rows).all(|(found, row)| found == row));
        if len == whole.len() {
            assert_eq!(found.len(), 4);
        }
        cache.put(key("more"), b"more");
        cache.flush().unwrap();
        drop(cache);
        assert_eq!(RowCache::open(&path).unwrap().get(&key("more")).unwrap().unwrap(), b"more");
    }
    let mut changed = whole.clone();
    *changed.last_mut().unwrap() ^= 1;
    std::fs::write(&path, &changed).unwrap();
    assert_eq!(RowCache::open(&path).unwrap().get(&key(&text(3))).unwrap(), None);
    std::fs::write(&path, "a file of the user's").unwrap();
    assert_eq!(conflict(RowCache::open(&path)), Conflict::NotRows);
    assert_ne!(RowKey::new(&identity("a"), "x"), RowKey::new(&identity("b"), "x"));
}

#[test]
fn a_models_digest_is_of_its_contents() {
    let folder = scratch("digest");
    let files = [("config.json", "{}"), ("model.safetensors", "weights"), ("1_Pooling/config.json", "{}")];
    let write = |name: &str| {
        std::fs::create_dir_all(folder.join(name).join("1_Pooling")).unwrap();
        files.iter().for_each(|(file, text)| std::fs::write(folder.join(name).join(file), text).unwrap());
        folder.join(name)
    };
    let (a, b) = (write("a"), write("b"));
    let digest = model_digest(&a).unwrap();
    assert_eq!((digest.len(), &digest), (64, &model_digest(&b).unwrap()));
    std::fs::write(b.join("README.md"), "words").unwrap();
    assert_eq!(digest, model_digest(&b).unwrap());
    std::fs::write(b.join("1_Pooling/config.json"), "{ }").unwrap();
    assert_ne!(digest, model_digest(&b).unwrap());
}

/// Modules wherever `modules.json` says, and GGUF files however their ending is written.
#[test]
fn every_file_that_is_read_is_in_the_digest() {
    let folder = scratch("digest_deep");
    let module = folder.join("modules/more/2_Dense");
    std::fs::create_dir_all(&module).unwrap();
    std::fs::create_dir_all(folder.join("other/deep")).unwrap();
    let modules = r#"[{"idx": 0, "path": ""}, {"idx": 1, "path": "modules/more/2_Dense"}, {"idx": 2, "path": "gone"}]"#;
    std::fs::write(folder.join("modules.json"), modules).unwrap();
    let mut before = model_digest(&folder).unwrap();
    for (name, read) in [
        ("modules/more/2_Dense/model.safetensors", true),
        ("MODEL.GGUF", true),
        ("model.Q8_0.gguf", true),
        ("other/deep/model.safetensors", false),
        ("notes.md", false),
    ] {
        for bytes in ["a", "b"] {
            std::fs::write(folder.join(name), bytes).unwrap();
            let now = model_digest(&folder).unwrap();
            assert_eq!(now != before, read, "{name}");
            before = now;
        }
    }
}
