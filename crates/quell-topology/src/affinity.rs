//! On which CPUs the calling thread may run, and pinning it to one.

use std::marker::PhantomData;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use quell_core::CpuId;

use crate::{Error, format_cpu_list};

/// The calling thread: the kernel takes 0 for it.
const THIS_THREAD: Pid = Pid::from_raw(0);

/// The CPUs that the calling thread may run on (its affinity mask, which a cpuset also limits), ascending.
///
/// # Errors
/// [`Error::Affinity`] if the kernel refuses to tell, for example because it has more than 1,024 CPUs.
pub fn allowed() -> Result<Vec<CpuId>, Error> {
    let mask = sched_getaffinity(THIS_THREAD).map_err(|source| Error::Affinity { source })?;
    Ok(members(&mask))
}

fn members(mask: &CpuSet) -> Vec<CpuId> {
    (0..CpuSet::count()).filter(|&cpu| mask.is_set(cpu) == Ok(true)).map(|cpu| CpuId(cpu as u32)).collect()
}

/// Keeps the calling thread on one CPU; the thread's former mask comes back when this is dropped.
#[derive(Debug)]
pub struct Pinned {
    cpu: CpuId,
    former: CpuSet,
    /// A mask belongs to a thread, so the guard must not leave it.
    _not_send: PhantomData<*const ()>,
}

impl Pinned {
    /// Moves the calling thread to `cpu` and keeps it there.
    ///
    /// # Errors
    /// [`Error::Pin`] if the CPU does not exist, is offline, or is not in the process's cpuset.
    pub fn to(cpu: CpuId) -> Result<Self, Error> {
        let former = sched_getaffinity(THIS_THREAD).map_err(|source| Error::Affinity { source })?;
        let mut mask = CpuSet::new();
        mask.set(cpu.0 as usize)
            .and_then(|()| sched_setaffinity(THIS_THREAD, &mask))
            .map_err(|source| Error::Pin { cpu, allowed: format_cpu_list(&members(&former)), source })?;
        Ok(Self { cpu, former, _not_send: PhantomData })
    }

    /// The CPU that the thread is pinned to.
    #[must_use]
    pub fn cpu(&self) -> CpuId {
        self.cpu
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // This fails only if the cpuset no longer holds any CPU of the former mask; then the kernel has
        // already chosen a mask, and there is nothing to restore.
        let _ = sched_setaffinity(THIS_THREAD, &self.former);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_to_every_allowed_cpu_and_restores() {
        let before = allowed().unwrap();
        assert!(!before.is_empty());
        for &cpu in &before {
            let pinned = Pinned::to(cpu).unwrap();
            assert_eq!(pinned.cpu(), cpu);
            assert_eq!(allowed().unwrap(), [cpu]);
        }
        assert_eq!(allowed().unwrap(), before);
    }

    #[test]
    fn an_impossible_cpu_is_an_error_that_names_the_possible_ones() {
        let before = allowed().unwrap();
        for cpu in [1_000, 100_000] {
            let message = Pinned::to(CpuId(cpu)).unwrap_err().to_string();
            assert!(message.contains(&cpu.to_string()) && message.contains(&format_cpu_list(&before)));
        }
        assert_eq!(allowed().unwrap(), before);
    }
}
