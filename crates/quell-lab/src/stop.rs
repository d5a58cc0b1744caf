//! The user's wish to end, as a flag that every wait looks at.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{LabError, Result};

/// Set once the user wants the lab to end; made from the flag that the signal handlers set.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl From<Arc<AtomicBool>> for Stop {
    fn from(flag: Arc<AtomicBool>) -> Self {
        Self(flag)
    }
}

impl Stop {
    /// [`LabError::Interrupted`] if the end was asked for.
    ///
    /// # Errors
    /// As said.
    pub fn check(&self) -> Result<()> {
        if self.0.load(Ordering::SeqCst) { Err(LabError::Interrupted) } else { Ok(()) }
    }
}
