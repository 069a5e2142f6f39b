//! AMX in software, for tests on CPUs without it: tile instructions raise SIGILL there, and the handler does what they
//! say to tiles of the thread's own. A misuse ends the process with a message, as it would with a signal on a CPU that
//! has them. Other illegal instructions are left to whom they went before.

mod decode;
mod tiles;

mod tests;

use std::cell::{Cell, UnsafeCell};
use std::sync::OnceLock;

use decode::{Instruction, decode};
use tiles::Tiles;

thread_local! {
    // Constant and without a destructor: a signal's handler may use it, as nothing is allocated or registered.
    static TILES: UnsafeCell<Tiles> = const { UnsafeCell::new(Tiles::new()) };
    static PRODUCTS: Cell<usize> = const { Cell::new(0) };
}

/// How many products of tiles were emulated on this thread so far.
pub fn products() -> usize {
    PRODUCTS.get()
}

/// What handled SIGILL before.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

/// Emulates tile instructions in this process from now on. Only for CPUs that lack them.
pub fn install() {
    PREVIOUS.get_or_init(|| {
        // SAFETY: both are plain structs of numbers, for which zeros are values; the handler has the signature that
        // SA_SIGINFO asks for.
        unsafe {
            let mut previous: libc::sigaction = std::mem::zeroed();
            assert_eq!(libc::sigaction(libc::SIGILL, std::ptr::null(), &raw mut previous), 0);
            previous
        }
    });
    // SAFETY: as above.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = handle;
        action.sa_sigaction = handler as libc::sighandler_t;
        // A fault inside the handler ends the process at once, and does not wait.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
        assert_eq!(libc::sigaction(libc::SIGILL, &raw const action, std::ptr::null_mut()), 0);
    }
}

/// The general registers of a context by their numbers in instructions.
const REGISTERS: [libc::c_int; 16] = [
    libc::REG_RAX,
    libc::REG_RCX,
    libc::REG_RDX,
    libc::REG_RBX,
    libc::REG_RSP,
    libc::REG_RBP,
    libc::REG_RSI,
    libc::REG_RDI,
    libc::REG_R8,
    libc::REG_R9,
    libc::REG_R10,
    libc::REG_R11,
    libc::REG_R12,
    libc::REG_R13,
    libc::REG_R14,
    libc::REG_R15,
];

/// Executes the instruction of a SIGILL, and goes on after it. It calls nothing that a signal's handler may not.
extern "C" fn handle(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the system hands over the context of the thread that was interrupted, which this handler alone uses; the
    // bytes at its instruction pointer were just read by the CPU, as far as they belong to the instruction, and no more
    // of them are read.
    unsafe {
        let general = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
        let here = general[libc::REG_RIP as usize] as u64;
        let registers = REGISTERS.map(|register| general[register as usize] as u64);
        let byte = |at: usize| *(here as *const u8).add(at);
        let Some((instruction, length)) = decode(byte, &registers, here) else {
            // Executed again, it goes to the handler before this one.
            if let Some(previous) = PREVIOUS.get() {
                libc::sigaction(libc::SIGILL, previous, std::ptr::null_mut());
            }
            return;
        };
        if let Err(why) = TILES.with(|tiles| execute(&mut *tiles.get(), &instruction)) {
            refuse(why);
        }
        general[libc::REG_RIP as usize] = (here + length as u64) as libc::greg_t;
    }
}

/// # Safety
/// Memory operands are those of the program, which vouches for them.
unsafe fn execute(tiles: &mut Tiles, instruction: &Instruction) -> Result<(), &'static str> {
    // SAFETY: forwarded.
    unsafe {
        match *instruction {
            Instruction::Configure(from) => tiles.configure(&*(from as *const [u8; 64])),
            Instruction::Release => {
                tiles.release();
                Ok(())
            }
            Instruction::Zero { tile } => tiles.zero(tile),
            Instruction::Load { tile, from, stride } => tiles.load(tile, from as *const u8, stride as isize),
            Instruction::Store { tile, to, stride } => tiles.store(tile, to as *mut u8, stride as isize),
            Instruction::Multiply { signs, sums, a, b } => {
                PRODUCTS.set(PRODUCTS.get() + 1);
                tiles.multiply(signs, sums, a, b)
            }
        }
    }
}

/// Ends the process.
fn refuse(why: &'static str) -> ! {
    for part in ["AMX emulator: ", why, "\n"] {
        // SAFETY: the bytes are a string's; what could not be written is lost.
        unsafe { libc::write(libc::STDERR_FILENO, part.as_ptr().cast(), part.len()) };
    }
    // SAFETY: a signal's handler may call it.
    unsafe { libc::abort() }
}
