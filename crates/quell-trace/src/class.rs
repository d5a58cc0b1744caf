//! Which function belongs to which stage of a call.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What time was spent on. Every nanosecond of a call belongs to exactly one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// Waiting for an RCU grace period, and setting that up.
    RcuWait,
    /// Emptying the LRU batches of all CPUs, and waiting for the workers there.
    RemoteDrain,
    /// Emptying the LRU batches that hold one folio, or those of this CPU.
    FolioDrain,
    /// Not running: preempted, or woken and not yet on a CPU; or asleep outside of the two waits above.
    OffCpu,
    /// Copying the content of pages.
    Copy,
    /// Finding pages in the page tables and taking them off the LRU lists.
    Isolation,
    /// Replacing page table entries by migration entries.
    Unmap,
    /// Flushing TLBs, of this and other CPUs.
    TlbFlush,
    /// Allocating the new pages.
    Allocation,
    /// Replacing migration entries by mappings of the new pages.
    Remap,
    /// Putting the new pages on the LRU lists, or into a batch for them.
    LruAdd,
    /// Giving back the old pages.
    Release,
    /// Interrupts that came during the call, and what they left to be done after them.
    Interrupt,
    /// Page faults that the call itself took.
    PageFault,
    /// Anything else in the call.
    Rest,
}

impl Class {
    /// All of them, in the order in which tables list them.
    pub const ALL: [Self; 15] = [
        Self::RcuWait,
        Self::RemoteDrain,
        Self::FolioDrain,
        Self::OffCpu,
        Self::Copy,
        Self::Isolation,
        Self::Unmap,
        Self::TlbFlush,
        Self::Allocation,
        Self::Remap,
        Self::LruAdd,
        Self::Release,
        Self::Interrupt,
        Self::PageFault,
        Self::Rest,
    ];

    /// In words for tables.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::RcuWait => "RCU wait",
            Self::RemoteDrain => "remote drain",
            Self::FolioDrain => "drain of one folio",
            Self::OffCpu => "off-CPU",
            Self::Copy => "copy",
            Self::Isolation => "isolation",
            Self::Unmap => "unmap",
            Self::TlbFlush => "TLB flush",
            Self::Allocation => "allocation",
            Self::Remap => "remap",
            Self::LruAdd => "LRU add",
            Self::Release => "release",
            Self::Interrupt => "interrupts",
            Self::PageFault => "page faults",
            Self::Rest => "rest",
        }
    }

    /// Whether tables list it even where it took no time: what people look for first.
    #[must_use]
    pub const fn is_basic(self) -> bool {
        matches!(self, Self::RcuWait | Self::RemoteDrain | Self::OffCpu | Self::Copy | Self::Rest)
    }

    /// Whether sleeping in it is what it consists of.
    pub(crate) const fn is_wait(self) -> bool {
        matches!(self, Self::RcuWait | Self::RemoteDrain)
    }

    /// How strongly it claims what is called from within: a drain that allocates is still a drain.
    const fn rank(self) -> u8 {
        match self {
            Self::Interrupt => 4,
            Self::RcuWait => 3,
            Self::RemoteDrain => 2,
            Self::FolioDrain | Self::PageFault => 1,
            _ => 0,
        }
    }

    /// The class of a function of class `inner` called in a context of class `self`.
    pub(crate) fn within(self, inner: Option<Self>) -> Self {
        match inner {
            Some(inner) if self.rank() == 0 || inner.rank() > self.rank() => inner,
            _ => self,
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.text())
    }
}

/// Functions by class, of Linux 5.4 to 6.17 and of Quell's patches.
const FUNCTIONS: [(Class, &[&str]); 12] = [
    (
        Class::RcuWait,
        &[
            "synchronize_rcu",
            "synchronize_rcu_expedited",
            "synchronize_rcu_normal",
            "__wait_rcu_gp",
            "rcu_barrier",
            "cond_synchronize_rcu",
            "cond_synchronize_rcu_expedited",
            "synchronize_srcu",
            "synchronize_srcu_expedited",
        ],
    ),
    (
        Class::RemoteDrain,
        &[
            "lru_cache_disable",
            "lru_add_drain_all",
            "__lru_add_drain_all",
            "lru_add_drain_per_cpu",
            "migrate_prep",
            "drain_all_pages",
        ],
    ),
    (
        Class::FolioDrain,
        &[
            "lru_drain_folio",
            "mlock_drain_folio",
            "lru_cache_drain_for_folio",
            "lru_add_drain",
            "lru_add_drain_cpu",
            "mlock_drain_local",
        ],
    ),
    (
        Class::Copy,
        &[
            "folio_mc_copy",
            "folio_copy",
            "folio_migrate_copy",
            "migrate_page_copy",
            "copy_huge_page",
            "copy_highpage",
            "copy_mc_highpage",
            "copy_mc_to_kernel",
            "copy_page",
        ],
    ),
    (
        Class::Isolation,
        &[
            "add_folio_for_migration",
            "__add_folio_for_migration",
            "add_page_for_migration",
            "migrate_isolate_folio",
            "folio_isolate_lru",
            "isolate_lru_page",
            "isolate_hugetlb",
            "queue_pages_range",
            "queue_folios_pte_range",
        ],
    ),
    (Class::Unmap, &["try_to_migrate", "try_to_unmap", "unmap_page", "migrate_vma_unmap"]),
    (
        Class::TlbFlush,
        &[
            "flush_tlb_mm_range",
            "flush_tlb_page",
            "flush_tlb_range",
            "ptep_clear_flush",
            "try_to_unmap_flush",
            "arch_tlbbatch_flush",
            "native_flush_tlb_multi",
            "native_flush_tlb_others",
            "kvm_flush_tlb_multi",
        ],
    ),
    (
        Class::Allocation,
        &[
            "alloc_migration_target",
            "alloc_new_node_page",
            "new_page_node",
            "alloc_misplaced_dst_folio",
            "__alloc_pages",
            "__alloc_pages_noprof",
            "__alloc_pages_nodemask",
            "__folio_alloc",
            "__folio_alloc_noprof",
        ],
    ),
    (Class::Remap, &["remove_migration_ptes", "remove_migration_pte"]),
    (
        Class::LruAdd,
        &["folio_add_lru", "lru_cache_add", "putback_lru_page", "folio_putback_lru", "putback_movable_pages"],
    ),
    (
        Class::Release,
        &[
            "migrate_folio_done",
            "__folio_put",
            "__put_page",
            "folios_put_refs",
            "release_pages",
            "free_unref_page",
            "free_unref_folios",
        ],
    ),
    (
        Class::Interrupt,
        &[
            "irq_enter_rcu",
            "irq_exit_rcu",
            "__irq_exit_rcu",
            "handle_softirqs",
            "__do_softirq",
            "do_softirq",
            "common_interrupt",
            "__common_interrupt",
            "do_IRQ",
            "do_nmi",
            "exc_nmi",
            "smp_apic_timer_interrupt",
        ],
    ),
];

/// Beginnings of the names of interrupt handlers.
const INTERRUPTS: [&str; 4] = ["sysvec_", "__sysvec_", "asm_sysvec_", "smp_call_function_interrupt"];
const FAULTS: [&str; 5] =
    ["exc_page_fault", "asm_exc_page_fault", "do_user_addr_fault", "handle_mm_fault", "do_page_fault"];
/// The unmapping of a page and its remapping share this function.
const WALK: &str = "rmap_walk";
/// Where a task sleeps, if the trace does not show that it does.
const SLEEP: [&str; 8] = [
    "schedule",
    "__schedule",
    "schedule_timeout",
    "io_schedule",
    "preempt_schedule_irq",
    "preempt_schedule_common",
    "schedule_preempt_disabled",
    "__cond_resched",
];

/// The class that a function has by itself, `None` for one that belongs to its caller.
///
/// Compiler suffixes (`.isra.0`, `.constprop.0`) do not count.
#[must_use]
pub fn class_of(function: &str) -> Option<Class> {
    let name = base(function);
    if INTERRUPTS.iter().any(|prefix| name.starts_with(prefix)) {
        return Some(Class::Interrupt);
    }
    if FAULTS.contains(&name) {
        return Some(Class::PageFault);
    }
    FUNCTIONS.iter().find(|(_, names)| names.contains(&name)).map(|(class, _)| *class)
}

/// As [`class_of`], for a function called by `caller`.
pub(crate) fn class_below(function: &str, caller: &str) -> Option<Class> {
    // `remove_migration_ptes` is often inlined into its caller, which leaves only the walk to be seen.
    if base(function) == WALK
        && ["migrate_folio_move", "move_to_new_folio", "unmap_and_move"].contains(&base(caller))
    {
        return Some(Class::Remap);
    }
    class_of(function)
}

/// Whether a task gives up the CPU in this function.
pub(crate) fn sleeps(function: &str) -> bool {
    SLEEP.contains(&base(function))
}

pub(crate) fn base(function: &str) -> &str {
    function.split_once('.').map_or(function, |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_have_at_most_one_class() {
        let mut all: Vec<&str> = FUNCTIONS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        all.extend(FAULTS);
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
    }

    #[test]
    fn suffixes_of_the_compiler_do_not_count() {
        assert_eq!(class_of("synchronize_rcu.part.0"), Some(Class::RcuWait));
        assert_eq!(class_of("__sysvec_apic_timer_interrupt"), Some(Class::Interrupt));
        assert_eq!(class_of("_raw_spin_lock"), None);
        assert_eq!(class_below("rmap_walk", "migrate_folio_move"), Some(Class::Remap));
        assert_eq!(class_below("rmap_walk", "try_to_migrate"), None);
    }

    #[test]
    fn the_context_wins_where_it_is_stronger() {
        assert_eq!(Class::Rest.within(Some(Class::Copy)), Class::Copy);
        assert_eq!(Class::Unmap.within(Some(Class::TlbFlush)), Class::TlbFlush);
        assert_eq!(Class::Unmap.within(None), Class::Unmap);
        assert_eq!(Class::RemoteDrain.within(Some(Class::FolioDrain)), Class::RemoteDrain);
        assert_eq!(Class::RemoteDrain.within(Some(Class::RcuWait)), Class::RcuWait);
        assert_eq!(Class::RcuWait.within(Some(Class::RemoteDrain)), Class::RcuWait);
        assert_eq!(Class::Copy.within(Some(Class::Interrupt)), Class::Interrupt);
        assert_eq!(Class::Interrupt.within(Some(Class::RcuWait)), Class::Interrupt);
        assert_eq!(Class::Isolation.within(Some(Class::FolioDrain)), Class::FolioDrain);
    }
}
