//! Whether the process that started this one is still there.

/// The process that started this one.
pub(super) struct Parent {
    #[cfg(unix)]
    id: u32,
    #[cfg(windows)]
    process: Option<windows::Process>,
}

#[cfg(unix)]
impl Parent {
    /// Who it is now.
    pub fn current() -> Self {
        Self { id: std::os::unix::process::parent_id() }
    }

    /// Whether it is gone. An orphan gets another parent; one that started as a child of process 1 has none to lose.
    pub fn is_gone(&self) -> bool {
        self.id != 1 && std::os::unix::process::parent_id() != self.id
    }
}

#[cfg(windows)]
impl Parent {
    /// Who it is now.
    pub fn current() -> Self {
        Self { process: windows::parent() }
    }

    /// Whether it is gone.
    pub fn is_gone(&self) -> bool {
        self.process.as_ref().is_some_and(windows::Process::has_ended)
    }
}

#[cfg(not(any(unix, windows)))]
impl Parent {
    /// Unknown here.
    pub fn current() -> Self {
        Self {}
    }

    /// Never, as far as is known.
    pub fn is_gone(&self) -> bool {
        false
    }
}

/// Whether this process was started to outlive its parent: it ignores hang-ups (`nohup`), or leads a session of its own
/// (`setsid`, services).
pub(super) fn meant_to_outlive() -> bool {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    ignores_hangup(&read("/proc/self/status")) || leads_session(&read("/proc/self/stat"))
}

/// Whether `SigIgn` of a /proc status has the bit of SIGHUP, which is signal 1.
fn ignores_hangup(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|m| u64::from_str_radix(m.trim(), 16).ok()).is_some_and(|m| m & 1 == 1)
}

/// Whether the session of a /proc stat is the process's own: fields 1 and 6, where field 2, a name in brackets, may hold
/// anything.
fn leads_session(stat: &str) -> bool {
    let Some((id, rest)) = stat.split_once(' ') else { return false };
    let after_name = rest.rsplit_once(')').map_or("", |(_, after)| after);
    after_name.split_whitespace().nth(3).is_some_and(|session| session == id)
}

#[cfg(windows)]
mod windows {
    use windows_sys::Win32::Foundation::{CloseHandle, HANDLE, INVALID_HANDLE_VALUE, WAIT_OBJECT_0};
    use windows_sys::Win32::System::Diagnostics::ToolHelp::{
        CreateToolhelp32Snapshot, PROCESSENTRY32W, Process32FirstW, Process32NextW, TH32CS_SNAPPROCESS,
    };
    use windows_sys::Win32::System::Threading::{OpenProcess, PROCESS_SYNCHRONIZE, WaitForSingleObject};

    /// A handle that keeps the process's number from being used again.
    pub struct Process(HANDLE);

    // SAFETY: a process handle may be used from any thread.
    unsafe impl Send for Process {}

    impl Process {
        pub fn has_ended(&self) -> bool {
            // SAFETY: the handle is open until this value is dropped; waiting 0 ms only looks.
            unsafe { WaitForSingleObject(self.0, 0) == WAIT_OBJECT_0 }
        }
    }

    impl Drop for Process {
        fn drop(&mut self) {
            // SAFETY: the handle is this value's own, and open.
            unsafe { CloseHandle(self.0) };
        }
    }

    /// The parent, if it is there and may be waited for.
    pub fn parent() -> Option<Process> {
        let id = parent_id()?;
        // SAFETY: no memory is passed; a process that is gone or foreign gives a null handle.
        let handle = unsafe { OpenProcess(PROCESS_SYNCHRONIZE, 0, id) };
        (!handle.is_null()).then_some(Process(handle))
    }

    fn parent_id() -> Option<u32> {
        // SAFETY: no memory is passed.
        let snapshot = unsafe { CreateToolhelp32Snapshot(TH32CS_SNAPPROCESS, 0) };
        if snapshot == INVALID_HANDLE_VALUE {
            return None;
        }
        let mut entry = PROCESSENTRY32W { dwSize: size_of::<PROCESSENTRY32W>() as u32, ..PROCESSENTRY32W::default() };
        // SAFETY: the snapshot is open and `entry` states its size.
        let mut more = unsafe { Process32FirstW(snapshot, &mut entry) } != 0;
        let mut found = None;
        while more && found.is_none() {
            found = (entry.th32ProcessID == std::process::id()).then_some(entry.th32ParentProcessID);
            // SAFETY: as above.
            more = unsafe { Process32NextW(snapshot, &mut entry) } != 0;
        }
        // SAFETY: the snapshot is open and nobody else's.
        unsafe { CloseHandle(snapshot) };
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parent_of_a_test_is_there() {
        assert!(!Parent::current().is_gone());
    }

    #[test]
    fn hangup_is_signal_one() {
        assert!(ignores_hangup("Name:\tx\nSigIgn:\t0000000000000001\n"));
        assert!(ignores_hangup("SigIgn:\t0000000001001001\n"));
        assert!(!ignores_hangup("SigIgn:\t0000000000001000\n"));
        for nonsense in ["", "SigIgn:", "SigIgn:\tzz", "SigBlk:\t0000000000000001"] {
            assert!(!ignores_hangup(nonsense), "{nonsense:?}");
        }
    }

    #[test]
    fn a_session_is_led_by_the_process_of_its_number() {
        assert!(leads_session("812 (kin-infer) S 1 812 812 0 -1"));
        assert!(!leads_session("812 (kin-infer) S 700 812 700 0 -1"));
        assert!(leads_session("812 (a ) b (c) S 1 812 812 0"), "a name may hold brackets and spaces");
        for nonsense in ["", "812", "812 (x", "812 (x) S 1"] {
            assert!(!leads_session(nonsense), "{nonsense:?}");
        }
    }
}
