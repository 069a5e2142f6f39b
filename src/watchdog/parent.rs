//! Whether the process that started this one is still there.

use std::sync::OnceLock;

/// The process that started this one, as it was when this was first asked.
pub(super) fn first_seen() -> &'static Parent {
    static FIRST: OnceLock<Parent> = OnceLock::new();
    FIRST.get_or_init(Parent::current)
}

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
    fn current() -> Self {
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
    fn current() -> Self {
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
    fn current() -> Self {
        Self {}
    }

    /// Never, as far as is known.
    pub fn is_gone(&self) -> bool {
        false
    }
}

/// Whether this process was started to outlive its parent: it ignores hang-ups (`nohup`), or leads a session of its own
/// (`setsid`, services).
#[cfg(unix)]
pub(super) fn meant_to_outlive() -> bool {
    ignores_hangup() || leads_session()
}

/// Whether this process was started to outlive its parent; other systems than Unix have no sign of it.
#[cfg(not(unix))]
pub(super) fn meant_to_outlive() -> bool {
    false
}

#[cfg(unix)]
fn ignores_hangup() -> bool {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: without a new action nothing is changed; the present one is written to `action`, which is a whole
    // structure, valid when zeroed.
    let (failed, action) =
        unsafe { (libc::sigaction(libc::SIGHUP, std::ptr::null(), action.as_mut_ptr()), action.assume_init()) };
    failed == 0 && action.sa_sigaction == libc::SIG_IGN
}

#[cfg(unix)]
fn leads_session() -> bool {
    // SAFETY: neither call takes memory; 0 is this process.
    unsafe { libc::getsid(0) == libc::getpid() }
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

    // SAFETY: a process handle may be used from any thread, and by several at once.
    unsafe impl Send for Process {}
    // SAFETY: as above.
    unsafe impl Sync for Process {}

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
        assert!(!first_seen().is_gone());
    }

    #[cfg(unix)]
    #[test]
    fn a_parent_of_another_number_is_gone() {
        let gone = Parent { id: std::process::id() };
        assert!(gone.is_gone());
        assert!(!Parent { id: 1 }.is_gone(), "a child of process 1 has none to lose");
    }
}
