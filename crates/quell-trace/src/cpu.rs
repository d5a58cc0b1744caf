//! Who runs on each CPU.

use std::collections::BTreeMap;

/// A CPU as the last lines left it.
#[derive(Debug, Default)]
pub(crate) struct Cpu {
    /// Name and thread ID of the task that runs.
    current: Option<(String, u32)>,
    /// The work that it does, if it is a worker.
    work: Option<String>,
    /// Thread ID of the task that the lines belong to. It changes a few lines after the event of the switch.
    printed: Option<u32>,
}

/// All CPUs that occur.
#[derive(Debug, Default)]
pub(crate) struct Cpus {
    cpus: BTreeMap<u32, Cpu>,
}

impl Cpus {
    /// Another task runs from here on.
    pub(crate) fn switch(&mut self, cpu: u32, comm: &str, pid: u32) {
        let cpu = self.cpus.entry(cpu).or_default();
        cpu.current = Some((comm.to_owned(), pid));
        cpu.work = None;
    }

    /// A line shows that a task runs. Its name may be cut, so the one that is known stays; and after a switch a few
    /// lines of the task that leaves still come.
    pub(crate) fn seen(&mut self, cpu: u32, comm: &str, pid: u32) {
        let entry = self.cpus.entry(cpu).or_default();
        let leaving = entry.printed.replace(pid) == Some(pid);
        if !leaving && entry.current.as_ref().is_none_or(|(_, known)| *known != pid) {
            self.switch(cpu, comm, pid);
        }
    }

    /// The task that the lines of this CPU belong to, if they do not say so themselves.
    pub(crate) fn printed(&self, cpu: u32) -> Option<u32> {
        let cpu = self.cpus.get(&cpu)?;
        cpu.printed.or(cpu.current.as_ref().map(|(_, pid)| *pid))
    }

    /// It becomes known whose lines those of this CPU have been.
    pub(crate) fn was(&mut self, cpu: u32, pid: u32) {
        self.cpus.entry(cpu).or_default().printed.get_or_insert(pid);
    }

    /// A worker begins or ends some work.
    pub(crate) fn work(&mut self, cpu: u32, work: Option<&str>) {
        self.cpus.entry(cpu).or_default().work = work.map(str::to_owned);
    }

    /// Events of this CPU were lost.
    pub(crate) fn forget(&mut self, cpu: u32) {
        self.cpus.remove(&cpu);
    }

    /// The task that runs.
    pub(crate) fn pid(&self, cpu: u32) -> Option<u32> {
        self.cpus.get(&cpu)?.current.as_ref().map(|(_, pid)| *pid)
    }

    /// The task that runs, in words: with its work, but without the numbers that differ from one worker or
    /// idle task to the next.
    pub(crate) fn who(&self, cpu: Option<u32>) -> String {
        let Some(cpu) = cpu.and_then(|cpu| self.cpus.get(&cpu)) else { return String::from("unknown") };
        let Some((comm, pid)) = &cpu.current else { return String::from("unknown") };
        let name = match (pid, comm.split_once('/')) {
            (0, _) => "idle",
            (_, Some((kind, _))) => kind,
            _ => comm,
        };
        match &cpu.work {
            Some(work) => format!("{name} ({work})"),
            None => name.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_runs_is_named_with_its_work() {
        let mut cpus = Cpus::default();
        assert_eq!(cpus.who(Some(0)), "unknown");
        cpus.switch(0, "kworker/0:1", 10);
        cpus.work(0, Some("lru_add_drain_per_cpu"));
        cpus.seen(0, "kworker", 10);
        assert_eq!(cpus.who(Some(0)), "kworker (lru_add_drain_per_cpu)");
        cpus.switch(0, "swapper/0", 0);
        assert_eq!((cpus.who(Some(0)).as_str(), cpus.pid(0)), ("idle", Some(0)));
        cpus.forget(0);
        assert_eq!((cpus.who(Some(0)).as_str(), cpus.who(None).as_str()), ("unknown", "unknown"));
    }
}
