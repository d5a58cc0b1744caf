//! Sums by class, and what they are made of.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

use crate::class::{Class, class_of, sleeps};

/// Most distinct names that are kept, so that a broken trace does not fill the memory.
const MAX_NAMES: usize = 65_536;
const KINDS: usize = Class::ALL.len();

/// Why a task was not running.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OffKind {
    /// It waited for something.
    Blocked,
    /// It could have run, and another task did.
    Runnable,
    /// It had been woken, and the CPU was idle but had not yet reacted.
    Waking,
    /// The trace has no `sched_switch` events.
    Unknown,
}

impl OffKind {
    /// In words for tables.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Blocked => "blocked",
            Self::Runnable => "runnable",
            Self::Waking => "waking",
            Self::Unknown => "off the CPU",
        }
    }
}

/// Time off the CPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Off {
    /// What the call was doing.
    pub during: Class,
    /// Blocked or runnable.
    pub kind: OffKind,
    /// The class that this time is part of: `during` for a wait, unless another task kept it from ending; else
    /// [`Class::OffCpu`].
    pub counted_as: Class,
    /// Who ran on that CPU meanwhile, with the work it did: `idle`, `kworker (lru_add_drain_per_cpu)`.
    pub who: String,
    /// Nanoseconds.
    pub off_ns: u64,
    /// Into how many pieces it was cut by other switches.
    pub pieces: u64,
}

/// Time in a function itself, without those it called and without time off the CPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionTime {
    /// Its name.
    pub function: String,
    /// The class that its time is part of.
    pub class: Class,
    /// Nanoseconds.
    pub self_ns: u64,
    /// Calls.
    pub calls: u64,
}

/// A class's part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassTime {
    /// The class.
    pub class: Class,
    /// Nanoseconds: on and off the CPU together.
    pub total_ns: u64,
    /// Of these, off the CPU.
    pub off_cpu_ns: u64,
    /// Whether the trace could show it: `false` if the recording left out all functions of this class, so that its
    /// time hides in that of its callers; `null` if nobody knows.
    pub traced: Option<bool>,
}

/// A duration and its parts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Breakdown {
    /// Nanoseconds from the beginning to the end: the sum of the classes and of what is unaccounted.
    pub duration_ns: u64,
    /// All classes, in the order of [`Class::ALL`].
    pub classes: Vec<ClassTime>,
    /// Nanoseconds that the trace does not explain.
    pub unaccounted_ns: u64,
    /// Time off the CPU, the longest first.
    pub off_cpu: Vec<Off>,
    /// Functions, those that took longest first.
    pub functions: Vec<FunctionTime>,
}

impl Breakdown {
    /// The part of a class in nanoseconds.
    #[must_use]
    pub fn class_ns(&self, class: Class) -> u64 {
        self.classes.iter().filter(|part| part.class == class).map(|part| part.total_ns).sum()
    }

    /// The part of a class in microseconds per call, or why it is not known, in words for tables.
    #[must_use]
    pub fn cell(&self, class: Class, calls: u64) -> String {
        match self.classes.iter().find(|part| part.class == class) {
            Some(part) if part.total_ns == 0 && part.traced == Some(false) => String::from("not traced"),
            Some(part) if part.total_ns > 0 || part.traced == Some(true) => {
                format!("{:.1}", part.total_ns as f64 / 1e3 / calls.max(1) as f64)
            }
            _ => String::from("not seen"),
        }
    }

    /// The sum of all classes and of what is unaccounted, in nanoseconds; always `duration_ns`.
    #[must_use]
    pub fn sum_ns(&self) -> u64 {
        self.classes.iter().map(|part| part.total_ns).sum::<u64>() + self.unaccounted_ns
    }
}

/// A number for a name.
pub(crate) type NameId = u32;

/// Names of functions and tasks, each kept once.
#[derive(Debug, Default)]
pub(crate) struct Names {
    ids: HashMap<String, NameId>,
    list: Vec<Name>,
}

#[derive(Debug)]
pub(crate) struct Name {
    pub(crate) text: String,
    pub(crate) class: Option<Class>,
    pub(crate) sleeps: bool,
}

impl Names {
    pub(crate) fn id(&mut self, text: &str) -> NameId {
        if let Some(id) = self.ids.get(text) {
            return *id;
        }
        let text = if self.list.len() >= MAX_NAMES { "(too many names)" } else { text };
        if let Some(id) = self.ids.get(text) {
            return *id;
        }
        let id = self.list.len() as NameId;
        self.ids.insert(text.to_owned(), id);
        self.list.push(Name { text: text.to_owned(), class: class_of(text), sleeps: sleeps(text) });
        id
    }

    pub(crate) fn get(&self, id: NameId) -> &Name {
        &self.list[id as usize]
    }
}

/// Sums while they are being made.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    on: [u64; KINDS],
    off: [u64; KINDS],
    pub(crate) unaccounted: u64,
    offs: BTreeMap<(Class, OffKind, NameId), (u64, u64)>,
    functions: HashMap<(NameId, Class), (u64, u64)>,
}

/// Most calls of which the sums are kept to find the median call.
const MAX_SUMS: usize = 1_000;

/// The sums of calls, of all or, if there are many, of every 2nd, 4th, 8th …
#[derive(Debug)]
pub(crate) struct Sums {
    kept: Vec<Tally>,
    stride: u64,
    seen: u64,
}

impl Default for Sums {
    fn default() -> Self {
        Self { kept: Vec::new(), stride: 1, seen: 0 }
    }
}

impl Sums {
    pub(crate) fn add(&mut self, tally: &Tally) {
        if self.seen.is_multiple_of(self.stride) {
            if self.kept.len() >= MAX_SUMS {
                let mut index = 0;
                self.kept.retain(|_| {
                    index += 1;
                    index % 2 == 1
                });
                self.stride *= 2;
            }
            let (on, off, unaccounted) = (tally.on, tally.off, tally.unaccounted);
            self.kept.push(Tally { on, off, unaccounted, ..Tally::default() });
        }
        self.seen += 1;
    }

    /// The call with the median duration: of an even number, the shorter of the two in the middle.
    pub(crate) fn median(&self) -> Option<&Tally> {
        let mut order: Vec<&Tally> = self.kept.iter().collect();
        order.sort_by_key(|tally| tally.sum());
        order.get(order.len().checked_sub(1)? / 2).copied()
    }
}

/// The class to which time off the CPU belongs.
pub(crate) fn counted_as(during: Class, kind: OffKind) -> Class {
    if during.is_wait() && kind != OffKind::Runnable { during } else { Class::OffCpu }
}

impl Tally {
    pub(crate) fn add_self(&mut self, function: NameId, class: Class, nanos: u64) {
        self.on[class as usize] += nanos;
        let entry = self.functions.entry((function, class)).or_default();
        entry.0 += nanos;
        entry.1 += 1;
    }

    pub(crate) fn add_off(&mut self, during: Class, kind: OffKind, who: NameId, nanos: u64, pieces: u64) {
        self.off[counted_as(during, kind) as usize] += nanos;
        let entry = self.offs.entry((during, kind, who)).or_default();
        entry.0 += nanos;
        entry.1 += pieces;
    }

    pub(crate) fn sum(&self) -> u64 {
        self.on.iter().chain(&self.off).sum::<u64>() + self.unaccounted
    }

    /// Takes away what rounding added, from the function that took longest.
    pub(crate) fn trim(&mut self, mut excess: u64) {
        while excess > 0 {
            let Some(((_, class), (nanos, _))) =
                self.functions.iter_mut().max_by_key(|((id, class), (nanos, _))| (*nanos, *id, *class))
            else {
                break;
            };
            let part = excess.min(*nanos);
            if part == 0 {
                break;
            }
            *nanos -= part;
            self.on[*class as usize] -= part;
            excess -= part;
        }
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        for (sum, part) in self.on.iter_mut().chain(&mut self.off).zip(other.on.iter().chain(&other.off)) {
            *sum += part;
        }
        self.unaccounted += other.unaccounted;
        for (key, (nanos, pieces)) in &other.offs {
            let entry = self.offs.entry(*key).or_default();
            entry.0 += nanos;
            entry.1 += pieces;
        }
        for (key, (nanos, calls)) in &other.functions {
            let entry = self.functions.entry(*key).or_default();
            entry.0 += nanos;
            entry.1 += calls;
        }
    }

    /// The sums with names, and the `most` longest functions and times off the CPU.
    pub(crate) fn breakdown(
        &self,
        names: &Names,
        traced: &dyn Fn(Class) -> Option<bool>,
        most: usize,
    ) -> Breakdown {
        let part = |class: Class| ClassTime {
            class,
            total_ns: self.on[class as usize] + self.off[class as usize],
            off_cpu_ns: self.off[class as usize],
            traced: traced(class),
        };
        let mut off_cpu: Vec<Off> = self
            .offs
            .iter()
            .map(|((during, kind, who), (nanos, pieces))| Off {
                during: *during,
                kind: *kind,
                counted_as: counted_as(*during, *kind),
                who: names.get(*who).text.clone(),
                off_ns: *nanos,
                pieces: *pieces,
            })
            .filter(|off| off.off_ns > 0)
            .collect();
        off_cpu.sort_by(|a, b| (b.off_ns, &a.who, a.during).cmp(&(a.off_ns, &b.who, b.during)));
        off_cpu.truncate(most);
        let mut functions: Vec<FunctionTime> = self
            .functions
            .iter()
            .map(|((function, class), (nanos, calls))| FunctionTime {
                function: names.get(*function).text.clone(),
                class: *class,
                self_ns: *nanos,
                calls: *calls,
            })
            .collect();
        functions.sort_by(|a, b| (b.self_ns, &a.function, a.class).cmp(&(a.self_ns, &b.function, b.class)));
        functions.truncate(most);
        Breakdown {
            duration_ns: self.sum(),
            classes: Class::ALL.into_iter().map(part).collect(),
            unaccounted_ns: self.unaccounted,
            off_cpu,
            functions,
        }
    }
}
