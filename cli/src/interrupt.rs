//! Ctrl-C: the first ends what is under way, a second one the program.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::SIGINT;
use signal_hook::flag::{register, register_conditional_shutdown};

use crate::failure::{Failure, Result};

/// The exit code of a command that Ctrl-C ended: 128 and the signal's number.
pub const STATUS: u8 = 130;

/// What Ctrl-C does now.
pub struct Interrupt {
    cancel: Arc<AtomicBool>,
    /// Whether it ends the program: while nothing is under way, and after a first one.
    exits: Arc<AtomicBool>,
}

impl Interrupt {
    /// Ctrl-C ends the program, until [`begin`](Self::begin).
    pub fn install() -> Result<Self> {
        let this = Self { cancel: Arc::new(AtomicBool::new(false)), exits: Arc::new(AtomicBool::new(true)) };
        // In this order: the flag is asked before it is set.
        register_conditional_shutdown(SIGINT, STATUS.into(), this.exits.clone())
            .and_then(|_| register(SIGINT, this.exits.clone()))
            .and_then(|_| register(SIGINT, this.cancel.clone()))
            .map_err(refused)?;
        Ok(this)
    }

    /// Ctrl-C sets this flag too, from here on.
    pub fn sets(&self, flag: Arc<AtomicBool>) -> Result<()> {
        register(SIGINT, flag).map(|_| ()).map_err(refused)
    }

    /// From here on Ctrl-C ends what is under way, and not the program.
    pub fn begin(&self) {
        self.cancel.store(false, Ordering::SeqCst);
        self.exits.store(false, Ordering::SeqCst);
    }

    /// Nothing is under way any more.
    pub fn end(&self) {
        self.exits.store(true, Ordering::SeqCst);
    }

    /// Whether Ctrl-C was pressed since [`begin`](Self::begin).
    pub fn cancelled(&self) -> bool {
        self.cancel.load(Ordering::SeqCst)
    }

    /// The flag that ends a generation.
    pub fn flag(&self) -> Arc<AtomicBool> {
        self.cancel.clone()
    }
}

fn refused(why: std::io::Error) -> Failure {
    Failure::Failed(format!("Ctrl-C cannot be handled: {why}"))
}
