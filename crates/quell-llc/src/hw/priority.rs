//! Raising the probe's scheduling priority, as root.
#![allow(unsafe_code)]

use std::io;

use nix::libc;

/// While this lives, the calling thread runs at the highest ordinary priority (nice −20).
#[derive(Debug)]
pub struct Raised {
    before: libc::c_int,
}

impl Raised {
    /// Raises the calling thread.
    ///
    /// # Errors
    /// The system's refusal, usually because the caller is not root.
    pub fn calling_thread() -> io::Result<Self> {
        // SAFETY: getpriority and setpriority take plain numbers; 0 names the calling thread.
        let (before, outcome) = unsafe {
            let before = libc::getpriority(libc::PRIO_PROCESS, 0);
            (before, libc::setpriority(libc::PRIO_PROCESS, 0, -20))
        };
        if outcome == 0 { Ok(Self { before }) } else { Err(io::Error::last_os_error()) }
    }
}

impl Drop for Raised {
    fn drop(&mut self) {
        // SAFETY: as above. Lowering one's own priority is always allowed.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, self.before) };
    }
}
