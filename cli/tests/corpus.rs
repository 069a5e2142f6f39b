//! Long runs: whatever happens on the way, the file at the end is that of an undisturbed run.

mod common;

use std::io::Write;
use std::process::Stdio;
use std::time::{Duration, Instant};

use common::runs::*;
use common::*;
use serde_json::Value;

/// Kills runs at random moments and goes on with them until they are done, again and again.
#[test]
fn killed_runs_end_with_the_bytes_of_an_undisturbed_one() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut told = Vec::new();
    for (name, more) in [
        ("out.jsonl", &["--counts"][..]),
        ("out.npy", &["--pooling", "none"]),
        ("out.parquet", &["--counts"]),
        ("out.jsonl", &["--split", "lines", "--split-tokens", "9", "--cache"]),
    ] {
        let folder = scratch("kills");
        let input = documents(&folder, 240);
        let cache = folder.join("rows").display().to_string();
        let more = if more.contains(&"--cache") { [more, &[cache.as_str()]].concat() } else { more.to_vec() };
        let whole = folder.join("whole");
        std::fs::create_dir(&whole).unwrap();
        let steps = [&more[..], &["--checkpoint", "5"]].concat();
        let start = Instant::now();
        embed(&input, &whole.join(name), &steps).expect(1);
        let time = start.elapsed();
        let expected = output_files(&whole);
        let _ = std::fs::remove_file(&cache);
        // Killed nine times at least, until three runs were gone on with; the last round is not disturbed.
        let (mut kills, mut resumed) = (0, 0);
        loop {
            let last = kills >= 9 && resumed >= 3;
            assert!(kills < 300, "{name}: only {resumed} of {kills} kills came after a commit");
            let resume = if kills % 3 == 0 && output_files(&folder).is_empty() { &[][..] } else { &["--resume"] };
            let mut child = command(&input, &folder.join(name), &[&steps[..], resume].concat()).spawn().unwrap();
            if !last {
                std::thread::sleep(Duration::from_micros(random.below(time.as_micros() as u64)));
                child.kill().unwrap();
            }
            let ran = ended(child);
            resumed += usize::from(ran.stderr.contains("texts are there already"));
            if ran.code == -1 {
                kills += 1;
                // Under its name a file is whole.
                for (file, bytes) in output_files(&folder).iter().filter(|(file, _)| !file.ends_with(".partial")) {
                    assert_eq!(Some(bytes), expected.get(file), "{file}");
                }
                continue;
            }
            // Killed after its end: a run without --resume leaves no journal.
            let late = ran.stderr.contains("no journal of its run");
            assert_eq!(ran.stderr.matches("not UTF-8").count(), if late { 0 } else { 2 }, "{}", ran.stderr);
            assert_eq!(ran.code, 1, "{}", ran.stderr);
            assert_eq!(output_files(&folder), expected, "{name}");
            if last && !late {
                break;
            }
            for file in output_files(&folder).keys() {
                std::fs::remove_file(folder.join(file)).unwrap();
            }
            let _ = std::fs::remove_file(folder.join(format!("{name}.journal")));
            let _ = std::fs::remove_file(&cache);
        }
        told.push(format!("{name}: {kills} kills, {resumed} runs gone on with"));
    }
    println!("{}", told.join("\n"));
}

/// Two runs on one output: the second is refused, until the first has ended, however it ended.
#[test]
fn two_runs_on_one_output_never_mix() {
    let folder = scratch("two");
    let output = folder.join("out.jsonl");
    let from_stdin = || {
        let mut command = kin_infer();
        command.args(["embed", "--model", &model(), "--resume", "--output"]).arg(&output);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let journal = folder.join("out.jsonl.journal");
    let wait = || {
        let start = Instant::now();
        while !std::fs::metadata(&journal).is_ok_and(|m| m.len() > 0) {
            assert!(start.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(2));
        }
    };
    let mut first = from_stdin();
    wait();
    let mut second = from_stdin();
    drop(second.stdin.take());
    let refused = ended(second).expect(1);
    assert!(refused.stderr.contains("another run is writing it"), "{}", refused.stderr);
    first.kill().unwrap();
    first.wait().unwrap();
    // A killed process leaves no lock.
    let mut third = from_stdin();
    third.stdin.take().unwrap().write_all(b"a\nb\n").unwrap();
    assert!(ended(third).expect(0).stderr.contains("embedded 2 texts"));
    let expected = run(&["embed", "--model", &model(), "a", "b"]).expect(0);
    let stored = std::fs::read_to_string(&output).unwrap();
    let vectors = |text: &str| -> Vec<Value> {
        text.lines().map(|l| serde_json::from_str::<Value>(l).unwrap()["embedding"].clone()).collect()
    };
    assert_eq!(vectors(&stored), vectors(&expected.stdout));
}

#[test]
fn an_unfinished_run_is_neither_lost_nor_mixed_with_another() {
    let folder = scratch("unfinished");
    let input = documents(&folder, 120);
    let model_copy = folder.join("model");
    copy_folder(&fixture("st-tiny"), &model_copy);
    let output = folder.join("out.jsonl");
    let embed = |more: &[&str]| {
        let mut command = kin_infer();
        command.args(["embed", "--checkpoint", "8", "--model"]).arg(&model_copy).arg("--input").arg(&input);
        command.arg("--output").arg(&output).args(more).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut child = embed(&[]);
    let partial = folder.join("out.jsonl.partial");
    let start = Instant::now();
    let journal = folder.join("out.jsonl.journal");
    while !std::fs::read_to_string(&journal).is_ok_and(|text| text.lines().any(|line| line.contains("\"batch\""))) {
        assert!(start.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_micros(100));
    }
    child.kill().unwrap();
    if child.wait().unwrap().code().is_some() {
        panic!("the run ended before it was killed");
    }
    let left = (std::fs::read(&partial).unwrap(), std::fs::read(folder.join("out.jsonl.journal")).unwrap());
    let refused = |more: &[&str], message: &str| {
        let ran = ended(embed(more)).expect(1);
        assert!(ran.stderr.contains(message), "{more:?}: {}", ran.stderr);
        let now = (std::fs::read(&partial).unwrap(), std::fs::read(folder.join("out.jsonl.journal")).unwrap());
        assert!(now == left, "{more:?}: a refused run changes nothing");
    };
    refused(&[], "an unfinished run is there; --resume goes on with it, --restart begins anew");
    refused(&["--resume", "--normalize"], "another --normalize: `false` then, `true` now; --restart begins anew");
    refused(&["--resume", "--prompt", "query"], "another prompt");
    refused(&["--resume", "--counts"], "another --counts");
    let text = std::fs::read(&input).unwrap();
    std::fs::write(&input, [&text[..], b"{\"text\": \"more\"}\n"].concat()).unwrap();
    refused(&["--resume"], "another input");
    std::fs::write(&input, &text).unwrap();
    let weights = model_copy.join("model.safetensors");
    let whole = std::fs::read(&weights).unwrap();
    let mut changed = whole.clone();
    *changed.last_mut().unwrap() ^= 1;
    std::fs::write(&weights, &changed).unwrap();
    refused(&["--resume"], "another model");
    std::fs::write(&weights, &whole).unwrap();

    ended(embed(&["--resume"])).expect(1);
    let expected = std::fs::read(&output).unwrap();
    assert_eq!(expected.iter().filter(|b| **b == b'\n').count(), 120);
    // Finished: the same command does nothing, and says the same of what failed.
    let again = ended(embed(&["--resume"])).expect(1);
    assert!(again.stderr.contains("nothing is left to do") && again.stderr.matches("not UTF-8").count() == 2);
    std::fs::write(&input, b"{\"text\": \"new\"}\n").unwrap();
    let ran = ended(embed(&["--resume"])).expect(1);
    assert!(ran.stderr.contains("another input"), "{}", ran.stderr);
    assert_eq!(std::fs::read(&output).unwrap(), expected);
    ended(embed(&["--restart"])).expect(0);
    assert_eq!(std::fs::read_to_string(&output).unwrap().lines().count(), 1);
    std::fs::remove_file(folder.join("out.jsonl.journal")).unwrap();
    let ran = ended(embed(&["--resume"])).expect(1);
    assert!(ran.stderr.contains("no journal of its run"), "{}", ran.stderr);
}

/// No batch is larger than was asked for, and none that time does not close is smaller.
#[test]
fn a_checkpoint_comes_after_as_many_texts_as_asked_for() {
    let folder = scratch("checkpoints");
    let input = documents(&folder, 500);
    for checkpoint in [1u64, 7, 100, 150] {
        let output = folder.join(format!("out.{checkpoint}.jsonl"));
        embed(&input, &output, &["--restart", "--checkpoint", &checkpoint.to_string()]).expect(1);
        let found = batches(&output);
        assert_eq!(found.iter().sum::<u64>(), 502);
        assert!(found.iter().all(|texts| *texts <= checkpoint), "{checkpoint}: {found:?}");
        assert!(found.contains(&checkpoint), "{checkpoint}: {found:?}");
    }
}

/// Results of another arithmetic are near, and not the same: a run never mixes them.
#[test]
fn a_run_of_another_arithmetic_is_not_gone_on_with() {
    let folder = scratch("arithmetic");
    let input = documents(&folder, 30);
    let output = folder.join("out.jsonl");
    embed(&input, &output, &["--restart"]).expect(1);
    let path = folder.join("out.jsonl.journal");
    let text = std::fs::read_to_string(&path).unwrap();
    let lines = text.lines().map(|line| match line.split_once(" {") {
        Some((_, rest)) if rest.contains("\"begun\"") => {
            let entry =
                format!("{{{rest}").replace("[\"arithmetic\",\"exact\"]", "[\"arithmetic\",\"neon, products by x\"]");
            assert!(entry.contains("products by x"), "{entry}");
            format!("{} {entry}\n", &sha256(entry.as_bytes())[..32])
        }
        _ => format!("{line}\n"),
    });
    std::fs::write(&path, lines.collect::<String>()).unwrap();
    let ran = embed(&input, &output, &["--resume"]).expect(1);
    let why = "begun with another arithmetic: `neon, products by x` then, `exact` now; --restart begins anew";
    assert!(ran.stderr.contains(why), "{}", ran.stderr);
}

/// What a run reads it never writes over, whatever the file is called there.
#[test]
fn input_is_never_written_over() {
    let folder = scratch("clash");
    let text = "{\"text\": \"a\"}\n";
    for name in ["docs.jsonl", "docs.npy.ids", "docs.npy.partial", "docs.jsonl.journal"] {
        let input = folder.join(name);
        std::fs::write(&input, text).unwrap();
        let output = if name.contains("npy") { folder.join("docs.npy") } else { folder.join("./docs.jsonl") };
        let ran = embed(&input, &output, &["--input-format", "jsonl"]).expect(2);
        assert!(ran.stderr.contains("is a file of --output") && ran.stderr.contains(name), "{}", ran.stderr);
        assert_eq!(std::fs::read_to_string(&input).unwrap(), text);
        std::fs::remove_file(&input).unwrap();
    }
    let input = documents(&folder, 5);
    let rows = folder.join("out.npy.ids").display().to_string();
    let ran = embed(&input, &folder.join("out.npy"), &["--cache", &rows]).expect(2);
    assert!(ran.stderr.contains("--cache") && ran.stderr.contains("is a file of --output"), "{}", ran.stderr);
    let ran = embed(&input, &folder.join("out.npy"), &["--cache", &input.display().to_string()]).expect(2);
    assert!(ran.stderr.contains("--input"), "{}", ran.stderr);
}

/// Offsets of token vectors beside an array of one vector a text would make it another array.
#[test]
fn no_stale_offsets_stay_beside_an_array() {
    let folder = scratch("offsets");
    let (input, output) = (documents(&folder, 5), folder.join("out.npy"));
    let names = || output_files(&folder).into_keys().collect::<Vec<_>>();
    embed(&input, &output, &["--pooling", "none"]).expect(1);
    assert_eq!(names(), ["out.npy", "out.npy.ids", "out.npy.offsets"]);
    embed(&input, &output, &[]).expect(1);
    assert_eq!(names(), ["out.npy", "out.npy.ids"]);
    let found = run(&["search", "--model", &model(), "--embeddings", &output.display().to_string(), "hello"]);
    assert_eq!(found.expect(0).stdout.lines().count(), 5);
}

/// The same pipe again goes on; another one is refused.
#[test]
fn stdin_is_gone_on_with_if_it_begins_as_before() {
    let folder = scratch("stdin");
    let texts: String = (0..60).map(|i| format!("text {i}\n")).collect();
    let output = folder.join("out.jsonl");
    let spawn = || {
        let mut command = kin_infer();
        command.args(["embed", "--model", &model(), "--checkpoint", "4", "--resume", "--output"]).arg(&output);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut child = spawn();
    let half = texts.len() / 2;
    let mut input = child.stdin.take().unwrap();
    input.write_all(&texts.as_bytes()[..half]).unwrap();
    let start = Instant::now();
    while !std::fs::metadata(folder.join("out.jsonl.partial")).is_ok_and(|m| m.len() > 3000) {
        assert!(start.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    drop(input);
    let with = |text: &str| {
        let mut child = spawn();
        let _ = child.stdin.take().unwrap().write_all(text.as_bytes());
        ended(child)
    };
    let refused = with(&texts.replace("text 1\n", "text one\n")).expect(1);
    assert!(refused.stderr.contains("another input"), "{}", refused.stderr);
    let ran = with(&texts).expect(0);
    assert!(ran.stderr.contains("texts are there already"), "{}", ran.stderr);
    let whole = run_with_input(&["embed", "--model", &model()], texts.as_bytes()).expect(0);
    assert_eq!(std::fs::read_to_string(&output).unwrap(), whole.stdout);
    // Finished: the same again is nothing to do, another input is not what was embedded.
    assert!(with(&texts).expect(0).stderr.contains("nothing is left to do"));
    for other in [texts.replace("text 59", "text 60"), format!("{texts}more\n"), texts[..half].to_string()] {
        let refused = with(&other).expect(1);
        assert!(refused.stderr.contains("another input") && refused.stderr.contains("--restart"), "{}", refused.stderr);
    }
    assert_eq!(std::fs::read_to_string(&output).unwrap(), whole.stdout);
}

#[test]
fn known_texts_are_not_embedded_again() {
    let folder = scratch("cache");
    let input = documents(&folder, 200);
    let cache = folder.join("rows").display().to_string();
    for more in [&[][..], &["--pooling", "none"]] {
        let output = |name: &str| folder.join(name);
        let with =
            |name: &str, extra: &[&str]| embed(&input, &output(name), &[more, &["--cache", &cache], extra].concat());
        let first = with("out.a.npy", &[]).expect(1);
        let second = with("out.b.npy", &[]).expect(1);
        embed(&input, &output("out.c.npy"), more).expect(1);
        assert!(second.stderr.contains(", 200 known before"), "{}", second.stderr);
        assert!(first.stderr.contains(" known before") && !first.stderr.contains(", 200 known"), "{}", first.stderr);
        let bytes = |name: &str| std::fs::read(output(name)).unwrap();
        assert!(bytes("out.a.npy") == bytes("out.b.npy") && bytes("out.a.npy") == bytes("out.c.npy"));
        // With another prompt, nothing is known but equal texts.
        let other = with("out.d.npy", &["--prompt", "query"]).expect(1);
        let known =
            |ran: &Ran| ran.stderr.split(" known before").next().unwrap().rsplit(' ').next().unwrap().to_string();
        assert_eq!(known(&other), known(&first));
    }
    let text = std::fs::read_to_string(folder.join("out.a.npy.ids")).unwrap();
    assert_eq!(text.lines().count(), 200);
    std::fs::write(&cache, "mine").unwrap();
    let ran = embed(&input, &folder.join("out.e.npy"), &["--cache", &cache]).expect(1);
    assert!(ran.stderr.contains("no file of rows"), "{}", ran.stderr);
    assert_eq!(std::fs::read_to_string(&cache).unwrap(), "mine");
}

#[test]
fn what_cannot_be_written_is_said_and_leaves_no_corrupt_file() {
    let folder = scratch("unwritable");
    let input = documents(&folder, 50);
    for (output, message) in [
        (folder.clone(), "not a regular file"),
        (folder.join("no/such/folder/out.jsonl"), "out.jsonl.journal"),
        (folder.join("docs.jsonl/out.jsonl"), "out.jsonl.journal"),
    ] {
        let ran = embed(&input, &output, &[]).expect(1);
        assert!(ran.stderr.contains(message), "{}", ran.stderr);
    }
    let protected = folder.join("out.jsonl");
    std::fs::write(&protected, "mine").unwrap();
    let mut permissions = std::fs::metadata(&protected).unwrap().permissions();
    permissions.set_readonly(true);
    std::fs::set_permissions(&protected, permissions).unwrap();
    let ran = embed(&input, &protected, &[]).expect(1);
    assert!(ran.stderr.contains("read-only"), "{}", ran.stderr);
    assert_eq!(std::fs::read_to_string(&protected).unwrap(), "mine");
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 2, "nothing is left behind");
    for (arguments, message) in [
        (&["--resume", "a"][..], "--output"),
        (&["--output", "x", "--resume", "--restart", "a"], "--restart"),
        (&["--format", "parquet", "a"], "--format parquet needs --output"),
        (&["--output", "x", "--checkpoint", "0", "a"], "--checkpoint"),
    ] {
        let model = model();
        let ran = run(&[&["embed", "--model", &model][..], arguments].concat()).expect(2);
        assert!(ran.stderr.contains(message), "{}", ran.stderr);
    }
}

#[test]
fn texts_that_are_too_long_fail_if_asked_to() {
    let long = "the parser ".repeat(40);
    let arguments = ["embed", "--model", &model(), "--on-long", "error", "a", &long, "b"];
    let ran = run(&arguments).expect(1);
    assert_eq!(ran.json().iter().map(|r| r["id"].clone()).collect::<Vec<_>>(), ["0", "2"]);
    assert!(ran.stderr.contains("id 1: longer than 24 tokens (`max_seq_length` of"), "{}", ran.stderr);
    // A record past what is held in memory.
    let huge = format!("a\n{}\nb\n", "x".repeat((32 << 20) + 5));
    let ran = run_with_input(&["embed", "--model", &model()], huge.as_bytes()).expect(1);
    assert_eq!(ran.json().iter().map(|r| r["id"].clone()).collect::<Vec<_>>(), ["1", "3"]);
    assert!(ran.stderr.contains("line 2: longer than 32 MiB"), "{}", ran.stderr);
}

#[test]
fn machines_get_json_lines_on_stderr() {
    let folder = scratch("log");
    let input = documents(&folder, 80);
    let ran = embed(&input, &folder.join("out.jsonl"), &["--log-format", "json", "--on-long", "error"]).expect(1);
    let events: Vec<Value> = ran.stderr.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let of = |name: &str| events.iter().filter(|e| e["event"] == name).collect::<Vec<_>>();
    let phases: Vec<&str> = of("phase").iter().map(|e| e["phase"].as_str().unwrap()).collect();
    assert!(phases.starts_with(&["loading the model", "hashing the model", "reading the input"]), "{phases:?}");
    assert!(phases.ends_with(&["embedding", "finishing the output"]), "{phases:?}");
    assert!(of("error").iter().any(|e| e["message"].as_str().unwrap().contains("not UTF-8")));
    let done = of("done")[0];
    assert_eq!(done["failed"], of("error").len());
    assert_eq!(done["texts"], 82 - of("error").len());
    assert!(done["tokens"].as_u64().unwrap() > 80 && done["read_bytes"] == done["total_bytes"]);
    let quiet = embed(&input, &folder.join("out.jsonl"), &["--log-format", "json", "--quiet"]).expect(1);
    assert!(quiet.stderr.lines().all(|l| l.contains("\"event\":\"error\"")), "{}", quiet.stderr);
    let failed = run(&["embed", "--model", "no/such", "--log-format", "json", "a"]).expect(1);
    let event: Value = serde_json::from_str(failed.stderr.trim()).unwrap();
    assert_eq!(event["event"], "error");
}

/// The watchdog's end of a run is an event, and costs nothing that was committed. The profile says whether it watches.
#[test]
fn the_watchdog_goes_by_the_profile_and_tells_machines() {
    let folder = scratch("watched");
    let input = documents(&folder, 4000);
    let whole = folder.join("whole.jsonl");
    embed(&input, &whole, &[]).expect(1);
    let output = folder.join("out.jsonl");
    // Every text is a commit of its own: that takes longer than the watchdog needs to look.
    let run = |profile: &str, more: &[&str]| {
        let mut command = command(&input, &output, &[&["--log-format", "json"], more].concat());
        command.env("KIN_EMBED_MAX_SECS", "0.1").env("KIN_RESOURCE_PROFILE", profile);
        ended(command.env("KIN_EMBED_ORPHAN_CHECK", "off").env_remove("KIN_EMBED_WATCHDOG").spawn().unwrap()).expect(1)
    };
    let ran = run("throughput", &["--checkpoint", "1"]);
    let events: Vec<Value> = ran.stderr.lines().map(|l| serde_json::from_str(l).expect("every line is JSON")).collect();
    let of = |name: &str| events.iter().filter(|e| e["event"] == name).collect::<Vec<_>>();
    let [trip] = of("watchdog")[..] else { panic!("{}", ran.stderr) };
    assert_eq!(trip["message"], "it took longer than 0.1 s (KIN_EMBED_MAX_SECS)");
    assert!(trip["persisted"].as_u64().unwrap() > 0 && trip["planned_bytes"].as_u64().unwrap() > 1 << 20, "{trip}");
    let last = of("error").last().unwrap()["message"].as_str().unwrap().to_string();
    assert!(last.starts_with("ended by the watchdog") && last.contains("--resume goes on"), "{last}");
    assert!(!output.exists());
    let rest = run("interactive", &["--checkpoint", "1", "--resume"]);
    assert!(rest.stderr.contains("texts are there already") && !rest.stderr.contains("watchdog"), "{}", rest.stderr);
    assert!(std::fs::read(&output).unwrap() == std::fs::read(&whole).unwrap());
}

/// Limits of the system: memory, file size, a full device. Only Linux's shell sets them all.
#[cfg(target_os = "linux")]
mod limits {
    use std::process::{Child, Command};

    use super::*;

    /// The command, begun by a shell that runs `limit` before.
    fn limited(limit: &str, inner: &Command) -> Child {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("{limit}; exec \"$@\""), "sh"]).arg(inner.get_program()).args(inner.get_args());
        for (name, value) in inner.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Under every limit of address space a run ends, and either its output is right or there is none and it can be
    /// gone on with.
    #[test]
    fn too_little_memory_never_makes_a_wrong_file() {
        let folder = scratch("memory");
        let input = documents(&folder, 300);
        let more = ["--checkpoint", "10"];
        embed(&input, &folder.join("whole.jsonl"), &more).expect(1);
        let expected = std::fs::read(folder.join("whole.jsonl")).unwrap();
        let output = folder.join("out.jsonl");
        let (mut enough, mut least) = (false, 0);
        let (mut low, mut high) = (1 << 10, 4 << 20);
        // Halves the distance between what is too little and what is enough, in KiB.
        while high - low > high / 64 {
            let limit = (low + high) / 2;
            let ran = ended(limited(
                &format!("ulimit -v {limit}"),
                &command(&input, &output, &[&more[..], &["--restart"]].concat()),
            ));
            if ran.stderr.contains("not UTF-8") && output.exists() {
                assert_eq!(std::fs::read(&output).unwrap(), expected, "under {limit} KiB");
                (enough, least, high) = (true, limit, limit);
            } else {
                assert!(!output.exists() && ran.code != 0, "under {limit} KiB: {}", ran.stderr);
                embed(&input, &output, &[&more[..], &["--resume"]].concat()).expect(1);
                assert_eq!(std::fs::read(&output).unwrap(), expected, "after {limit} KiB: {}", ran.stderr);
                low = limit;
            }
            std::fs::remove_file(&output).unwrap();
            let _ = std::fs::remove_file(folder.join("out.jsonl.journal"));
        }
        assert!(enough, "not even 4 GiB were enough");
        println!("{least} KiB of address space are enough");
    }

    #[test]
    fn a_full_disk_is_said_and_what_was_made_is_kept() {
        let folder = scratch("full");
        let input = documents(&folder, 300);
        for name in ["out.jsonl", "out.npy", "out.parquet"] {
            let whole = folder.join(format!("whole-{name}"));
            embed(&input, &whole, &[]).expect(1);
            let output = folder.join(name);
            // In blocks of 512 bytes. A shell that ignores the signal of that limit makes of it an error of `write`.
            let limit = "trap '' XFSZ; ulimit -f 32";
            let ran = ended(limited(limit, &command(&input, &output, &["--checkpoint", "10"]))).expect(1);
            assert!(ran.stderr.contains("File too large") && ran.stderr.contains("--resume"), "{}", ran.stderr);
            assert!(!output.exists());
            let ran = embed(&input, &output, &["--resume"]).expect(1);
            assert!(ran.stderr.contains("texts are there already"), "{}", ran.stderr);
            assert!(std::fs::read(&output).unwrap() == std::fs::read(&whole).unwrap(), "{name}");
        }
        let full = kin_infer()
            .args(["embed", "--model", &model(), "a"])
            .stdout(std::fs::File::options().write(true).open("/dev/full").unwrap())
            .output()
            .unwrap();
        assert_eq!(full.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&full.stderr).contains("stdout: No space left on device"));
    }

    /// Ctrl-C amid the work ends it with 130, and costs nothing that was committed.
    #[test]
    fn a_run_can_be_interrupted_amid_its_work() {
        let folder = scratch("amid");
        let input = documents(&folder, 3000);
        let whole = folder.join("whole.jsonl");
        embed(&input, &whole, &[]).expect(1);
        let output = folder.join("out.jsonl");
        // So many commits take a while.
        let child = command(&input, &output, &["--checkpoint", "1"]).spawn().unwrap();
        let start = Instant::now();
        while !folder.join("out.jsonl.journal").exists() || batches(&output).len() < 3 {
            assert!(start.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(1));
        }
        Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
        let ran = ended(child).expect(130);
        assert!(ran.stderr.contains("interrupted") && ran.stderr.contains("--resume goes on"), "{}", ran.stderr);
        assert!(!output.exists() && batches(&output).iter().sum::<u64>() < 3002);
        let rest = embed(&input, &output, &["--resume"]).expect(1);
        assert!(rest.stderr.contains("texts are there already"), "{}", rest.stderr);
        assert!(std::fs::read(&output).unwrap() == std::fs::read(&whole).unwrap());
    }

    /// The first Ctrl-C lets go of nothing.
    #[test]
    fn an_interrupted_run_is_kept() {
        let folder = scratch("interrupt");
        let output = folder.join("out.jsonl");
        let spawn = || {
            let mut command = kin_infer();
            command.args(["embed", "--model", &model(), "--checkpoint", "64", "--resume", "--output"]).arg(&output);
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        };
        let mut child = spawn();
        let mut input = child.stdin.take().unwrap();
        input.write_all("text\n".repeat(64).as_bytes()).unwrap();
        let start = Instant::now();
        while !std::fs::metadata(folder.join("out.jsonl.partial")).is_ok_and(|m| m.len() > 0) {
            assert!(start.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(1));
        }
        Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
        // The end of what others send is no end of the run: they were interrupted too.
        drop(input);
        let ran = ended(child).expect(130);
        assert!(ran.stderr.contains("interrupted") && ran.stderr.contains("--resume goes on"), "{}", ran.stderr);
        let mut child = spawn();
        child.stdin.take().unwrap().write_all("text\n".repeat(65).as_bytes()).unwrap();
        assert!(ended(child).expect(0).stderr.contains("64 texts are there already"));
        assert_eq!(std::fs::read_to_string(&output).unwrap().lines().count(), 65);
    }
}
