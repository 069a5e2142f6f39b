//! The watchdog ends real processes: each test starts this very binary again as a child that misbehaves in one way.

mod common;

use std::path::PathBuf;
use std::time::Duration;

use kin_infer::watchdog::{EmbedConfig, EmbedWatchdog, Phase};
use kin_infer::{BertConfig, BertModel, InferError, Sequence};

/// Which part a child plays; unset in the tests' own process.
const PART: &str = "KIN_TEST_WATCHDOG_PART";
/// Where a child's hook writes the report.
const FLUSHED: &str = "KIN_TEST_WATCHDOG_FLUSHED";
/// A child that ended by itself after it was cancelled.
const CANCELLED: i32 = 3;

/// What a test's child does. In the tests' own process there is nothing to do.
#[test]
fn child() {
    let Ok(part) = std::env::var(PART) else { return };
    let config = EmbedConfig { exit_grace: Duration::from_millis(700), ..EmbedConfig::from_env().unwrap() };
    let flushed = std::env::var_os(FLUSHED).map(PathBuf::from);
    let model = (part == "busy").then(load);
    let watchdog = EmbedWatchdog::start(config, move |report| {
        if let Some(file) = &flushed {
            std::fs::write(file, report.to_string()).unwrap();
        }
        if std::env::var(PART).is_ok_and(|part| part == "hanging-hook") {
            std::thread::sleep(Duration::from_secs(3600));
        }
    });
    let run = watchdog.run();
    match part.as_str() {
        // Busy with forward passes, and nothing is persisted.
        "busy" => compute_until_cancelled(watchdog, &model.unwrap().with_run(&run)),
        // Deaf to the flag: only the hard exit helps.
        "deaf" | "hanging-hook" => {
            run.enter(Phase::Write);
            sleep_forever()
        }
        // Persists all the time.
        "diligent" => loop {
            run.bump(10);
            std::thread::sleep(Duration::from_millis(10));
        },
        // An earlier run's handle persists, the current one's does not.
        "late" => {
            let current = watchdog.begin();
            current.enter(Phase::Tokenise);
            loop {
                run.bump(1000);
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        // A second and a half of work.
        "short" => {
            for _ in 0..150 {
                run.bump(10);
                std::thread::sleep(Duration::from_millis(10));
            }
            watchdog.stop();
            std::process::exit(0);
        }
        other => panic!("no part {other}"),
    }
}

fn sleep_forever() {
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

fn load() -> BertModel {
    let folder = common::fixture("bert-base");
    BertModel::load(&folder, BertConfig::from_folder(&folder).unwrap()).unwrap()
}

fn compute_until_cancelled(watchdog: EmbedWatchdog, model: &BertModel) {
    let sequences = vec![Sequence::new(vec![1; 30]); 40];
    loop {
        for result in model.encode(&sequences) {
            match result {
                Ok(encoded) => assert!(encoded.hidden.iter().all(|v| v.is_finite())),
                Err(InferError::Cancelled) => {
                    watchdog.stop();
                    std::process::exit(CANCELLED);
                }
                Err(e) => panic!("{e}"),
            }
        }
    }
}

/// What starts processes, which an emulator of another CPU cannot do.
mod processes {
    use std::path::{Path, PathBuf};
    use std::process::{Child, Command, ExitStatus, Stdio};
    use std::time::Duration;

    use super::{CANCELLED, FLUSHED, PART};
    use kin_infer::watchdog::EXIT_CODE;

    /// A folder of this test's own.
    fn scratch(name: &str) -> PathBuf {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("watchdog-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    /// This binary as a child that plays a part, its stderr in `stderr` and its hook's report in `flushed`.
    fn command(part: &str, folder: &Path, settings: &[(&str, &str)]) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "child", "--nocapture", "--test-threads=1"]);
        command.env(PART, part).env(FLUSHED, folder.join("flushed"));
        // Off unless a test sets it: the tests themselves may run under anything.
        for (name, value) in
            [("KIN_EMBED_ORPHAN_CHECK", "off"), ("KIN_EMBED_MIN_RATE", "0"), ("KIN_EMBED_MAX_SECS", "0")]
        {
            command.env(name, value);
        }
        command.env("KIN_EMBED_FLOOR_WINDOW_SECS", "1").env("KIN_EMBED_FLOOR_GRACE_SECS", "0");
        command.envs(settings.iter().copied());
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(std::fs::File::create(folder.join("stderr")).unwrap());
        command
    }

    /// Waits for a child's end, and kills one that takes two minutes.
    fn end_of(child: &mut Child) -> ExitStatus {
        // Looks are counted and not time: all of this may be stopped for a while.
        for _ in 0..6000 {
            if let Some(status) = child.try_wait().unwrap() {
                return status;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        child.kill().unwrap();
        panic!("the child was not ended: {:?}", child.wait());
    }

    /// Runs a part to its end: the status, what was flushed, and stderr.
    fn play(part: &str, settings: &[(&str, &str)]) -> (Option<i32>, String, String) {
        let folder = scratch(&format!("{part}-{}", settings.len()));
        let status = end_of(&mut command(part, &folder, settings).spawn().unwrap());
        let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap_or_default();
        let found = (status.code(), read("flushed"), read("stderr"));
        std::fs::remove_dir_all(&folder).unwrap();
        found
    }

    #[test]
    fn a_busy_run_that_persists_nothing_is_cancelled_and_ends_by_itself() {
        let (code, flushed, stderr) = play("busy", &[("KIN_EMBED_MIN_RATE", "1")]);
        assert_eq!(code, Some(CANCELLED), "{stderr}");
        assert!(flushed.contains("run 1 is ended: 0.000 units a second persisted over the last 1 s"), "{flushed}");
        assert!(flushed.contains("0 units persisted") && flushed.contains("the floor is 1"), "{flushed}");
        assert!(
            ["phase forward, item ", "phase tokenise", "phase plan", "phase pool, item "]
                .iter()
                .any(|p| flushed.contains(p))
        );
        assert!(stderr.contains(&flushed), "the report goes to stderr as well: {stderr}");
        if cfg!(target_os = "linux") {
            assert!(flushed.contains("memory ") && flushed.contains(" MiB, peak "), "{flushed}");
        }
    }

    #[test]
    fn a_run_that_is_deaf_is_ended_after_its_hook() {
        let (code, flushed, stderr) = play("deaf", &[("KIN_EMBED_MIN_RATE", "1")]);
        assert_eq!(code, Some(EXIT_CODE), "{stderr}");
        assert!(flushed.contains("phase write"), "{flushed}");
    }

    #[test]
    fn a_hook_that_hangs_does_not_keep_the_process() {
        let (code, flushed, stderr) = play("hanging-hook", &[("KIN_EMBED_MIN_RATE", "1")]);
        assert_eq!(code, Some(EXIT_CODE), "{stderr}");
        assert!(!flushed.is_empty());
    }

    #[test]
    fn the_wall_cap_ends_a_run_that_does_well() {
        let (code, flushed, _) = play("diligent", &[("KIN_EMBED_MIN_RATE", "1"), ("KIN_EMBED_MAX_SECS", "2")]);
        assert_eq!(code, Some(EXIT_CODE));
        assert!(flushed.contains("it took longer than 2 s"), "{flushed}");
        assert!(!flushed.contains("\n  0 units persisted"), "{flushed}");
    }

    #[test]
    fn what_an_earlier_run_persists_counts_for_nothing() {
        let (code, flushed, _) = play("late", &[("KIN_EMBED_MIN_RATE", "1")]);
        assert_eq!(code, Some(EXIT_CODE));
        assert!(flushed.contains("run 2 is ended") && flushed.contains("\n  0 units persisted"), "{flushed}");
        assert!(flushed.contains("phase tokenise"), "{flushed}");
    }

    #[test]
    fn a_run_that_does_well_ends_in_peace() {
        let (code, flushed, stderr) = play("short", &[("KIN_EMBED_MIN_RATE", "1"), ("KIN_EMBED_MAX_SECS", "60")]);
        assert_eq!((code, flushed.as_str()), (Some(0), ""), "{stderr}");
        assert!(!stderr.contains("watchdog"), "{stderr}");
    }

    #[test]
    fn switched_off_nothing_is_ended() {
        let folder = scratch("off");
        let settings = [("KIN_EMBED_WATCHDOG", "off"), ("KIN_EMBED_MIN_RATE", "1"), ("KIN_EMBED_MAX_SECS", "1")];
        let mut child = command("deaf", &folder, &settings).spawn().unwrap();
        std::thread::sleep(Duration::from_secs(4));
        assert_eq!(child.try_wait().unwrap(), None);
        child.kill().unwrap();
        child.wait().unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
    }

    /// The child of a shell that starts it and goes.
    #[cfg(unix)]
    #[test]
    fn an_orphan_is_ended() {
        let folder = scratch("orphan");
        let part = command("diligent", &folder, &[]);
        let mut shell = Command::new("sh");
        shell.args(["-c", "\"$0\" --exact child --nocapture --test-threads=1 2>\"$1\" & sleep 2"]);
        shell.arg(part.get_program()).arg(folder.join("stderr"));
        shell.envs(part.get_envs().filter_map(|(name, value)| Some((name, value?))));
        shell.env("KIN_EMBED_ORPHAN_CHECK", "on").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        assert!(shell.status().unwrap().success());
        let flushed = folder.join("flushed");
        for _ in 0..6000 {
            std::thread::sleep(Duration::from_millis(20));
            if flushed.is_file() {
                break;
            }
        }
        std::thread::sleep(Duration::from_millis(100));
        let report = std::fs::read_to_string(&flushed).unwrap();
        assert!(report.contains("the process that started it is gone"), "{report}");
        // The hard exit comes within the grace: the stderr file stops being open, so that the folder can go.
        std::thread::sleep(Duration::from_secs(1));
        std::fs::remove_dir_all(&folder).unwrap();
    }

    /// Stopped for longer than the floor's window and the wall cap, a process goes on where it was.
    #[cfg(unix)]
    #[test]
    fn time_in_which_a_process_was_stopped_does_not_count() {
        let folder = scratch("stopped");
        let settings = [("KIN_EMBED_MIN_RATE", "1"), ("KIN_EMBED_MAX_SECS", "10")];
        let mut child = command("short", &folder, &settings).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(700));
        let id = libc::pid_t::try_from(child.id()).unwrap();
        let signal = |signal| {
            // SAFETY: a signal to a child that is not waited for yet.
            assert_eq!(unsafe { libc::kill(id, signal) }, 0);
        };
        signal(libc::SIGSTOP);
        std::thread::sleep(Duration::from_secs(12));
        signal(libc::SIGCONT);
        let status = end_of(&mut child);
        let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap_or_default();
        assert_eq!((status.code(), read("flushed").as_str()), (Some(0), ""), "{}", read("stderr"));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}

#[test]
fn runs_have_numbers_and_counts_of_their_own() {
    let watchdog = EmbedWatchdog::start(EmbedConfig::disabled(), |_| {});
    let first = watchdog.run();
    watchdog.bump(5);
    assert_eq!((first.id(), first.persisted()), (1, 5));
    let second = watchdog.begin();
    first.bump(7);
    watchdog.bump(2);
    assert_eq!((second.id(), second.persisted(), first.persisted()), (2, 2, 12));
    assert!(!second.cancelled());
    watchdog.stop();
}
