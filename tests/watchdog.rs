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

/// What a test's child does.
#[test]
#[ignore = "a part that the other tests play in processes of their own"]
fn child() {
    let Ok(part) = std::env::var(PART) else { return };
    let report_to_stderr = part != "silent";
    let usual = EmbedConfig::from_env().unwrap();
    let config = EmbedConfig { exit_grace: Duration::from_millis(700), report_to_stderr, ..usual };
    if part == "outlives" {
        return println!("orphan check {}", config.orphan_check);
    }
    #[cfg(unix)]
    if part == "late-watch" {
        // Its parent goes between the configuration and the watch, while a model is loaded.
        let parent = std::os::unix::process::parent_id();
        while std::os::unix::process::parent_id() == parent {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
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
        "deaf" | "silent" | "hanging-hook" => {
            run.enter(Phase::Write);
            sleep_forever()
        }
        // Persists all the time.
        "diligent" | "late-watch" => loop {
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
        command.args(["--exact", "child", "--ignored", "--nocapture", "--test-threads=1"]);
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
    fn a_report_that_is_told_otherwise_does_not_go_to_stderr() {
        let (code, flushed, stderr) = play("silent", &[("KIN_EMBED_MIN_RATE", "1")]);
        assert_eq!(code, Some(EXIT_CODE), "{stderr}");
        assert!(flushed.contains("watchdog: run 1 is ended") && !stderr.contains("watchdog"), "{stderr}");
    }

    /// Nobody reads stderr, and its pipe is full: the hook flushes, and the process ends.
    #[cfg(unix)]
    #[test]
    fn a_full_pipe_keeps_nothing() {
        use std::os::fd::AsRawFd;
        let folder = scratch("full-pipe");
        let (reader, writer) = std::io::pipe().unwrap();
        let blocking = |on: bool| {
            // SAFETY: the descriptor is open; flags are all that is passed.
            unsafe {
                let flags = libc::fcntl(writer.as_raw_fd(), libc::F_GETFL);
                let flags = if on { flags & !libc::O_NONBLOCK } else { flags | libc::O_NONBLOCK };
                assert_eq!(libc::fcntl(writer.as_raw_fd(), libc::F_SETFL, flags), 0);
            }
        };
        blocking(false);
        while std::io::Write::write(&mut &writer, &[b' '; 512]).is_ok() {}
        while std::io::Write::write(&mut &writer, b" ").is_ok() {}
        blocking(true);
        let mut command = command("deaf", &folder, &[("KIN_EMBED_MIN_RATE", "1")]);
        let status = end_of(&mut command.stderr(writer).spawn().unwrap());
        drop(reader);
        let flushed = std::fs::read_to_string(folder.join("flushed")).unwrap_or_default();
        assert_eq!(status.code(), Some(EXIT_CODE));
        assert!(flushed.contains("run 1 is ended"), "{flushed}");
        std::fs::remove_dir_all(&folder).unwrap();
    }

    /// Under `nohup` and as the leader of a session, a process is meant to outlive its parent.
    #[cfg(unix)]
    #[test]
    fn what_is_meant_to_outlive_its_parent_is_not_checked() {
        use std::os::unix::process::CommandExt;
        let folder = scratch("outlives");
        let told = |hangup: libc::sighandler_t, leads: bool| {
            let mut command = command("outlives", &folder, &[]);
            command.env_remove("KIN_EMBED_ORPHAN_CHECK").stdout(Stdio::piped());
            // SAFETY: between fork and exec only these calls are made, which may be made there.
            unsafe {
                command.pre_exec(move || {
                    libc::signal(libc::SIGHUP, hangup);
                    if leads && libc::setsid() == -1 {
                        return Err(std::io::Error::last_os_error());
                    }
                    Ok(())
                })
            };
            let output = command.output().unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            let told = text.lines().find_map(|line| line.split_once("orphan check ")).map(|(_, on)| on.to_string());
            told.unwrap_or_else(|| panic!("{text}"))
        };
        assert_eq!(told(libc::SIG_IGN, false), "false", "under nohup");
        assert_eq!(told(libc::SIG_DFL, true), "false", "under setsid");
        assert_eq!(told(libc::SIG_DFL, false), "true");
        std::fs::remove_dir_all(&folder).unwrap();
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

    /// The child of a shell that starts it and goes, whether it goes before or after the watch begins.
    #[cfg(unix)]
    #[test]
    fn an_orphan_is_ended() {
        for name in ["diligent", "late-watch"] {
            let folder = scratch(&format!("orphan-{name}"));
            let part = command(name, &folder, &[]);
            // Whoever has this pipe's other end lives: the shell, and the orphan after it.
            let (mut alive, end) = std::io::pipe().unwrap();
            let mut shell = Command::new("sh");
            shell.args(["-c", "\"$0\" --exact child --ignored --nocapture --test-threads=1 2>\"$1\" & sleep 2"]);
            shell.arg(part.get_program()).arg(folder.join("stderr"));
            shell.envs(part.get_envs().filter_map(|(name, value)| Some((name, value?))));
            shell.env("KIN_EMBED_ORPHAN_CHECK", "on").stdin(Stdio::null()).stdout(end).stderr(Stdio::null());
            assert!(shell.status().unwrap().success());
            drop(shell);
            let (ended, end_of_orphan) = std::sync::mpsc::channel();
            std::thread::spawn(move || ended.send(std::io::copy(&mut alive, &mut std::io::sink()).map(drop)));
            let end = end_of_orphan.recv_timeout(Duration::from_secs(120));
            end.unwrap_or_else(|_| panic!("{name}: the orphan lives")).unwrap();
            let report = std::fs::read_to_string(folder.join("flushed")).unwrap();
            assert!(report.contains("the process that started it is gone"), "{report}");
            std::fs::remove_dir_all(&folder).unwrap();
        }
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
