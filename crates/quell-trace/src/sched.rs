//! The arguments of the scheduler's events.

/// `sched_switch`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switch<'a> {
    /// Name of the task that leaves.
    pub prev_comm: &'a str,
    /// Its thread ID.
    pub prev_pid: u32,
    /// It could go on running: it was preempted or yielded (state `R`, `R+`).
    pub preempted: bool,
    /// Name of the task that comes.
    pub next_comm: &'a str,
    /// Its thread ID.
    pub next_pid: u32,
}

impl<'a> Switch<'a> {
    /// Reads what the kernel prints, `prev_comm=a prev_pid=1 prev_prio=120 prev_state=R ==> next_comm=b
    /// next_pid=2 next_prio=120`, or what `trace-cmd report` makes of it, `a:1 [120] R ==> b:2 [120]`.
    #[must_use]
    pub fn parse(args: &'a str) -> Option<Self> {
        // Names of tasks may hold anything, this arrow too; but not those that the kernel gives.
        let (prev, next) = args.split_once(" ==> ")?;
        let (prev_comm, prev_pid, state) = match prev.strip_prefix("prev_comm=") {
            Some(prev) => {
                let (comm, rest) = prev.rsplit_once(" prev_pid=")?;
                let state = rest.rsplit_once(" prev_state=")?.1;
                (comm, number(rest)?, state)
            }
            None => {
                let (task, state) = prev.rsplit_once(' ')?;
                let (comm, pid) = short_task(task)?;
                (comm, pid, state)
            }
        };
        let (next_comm, next_pid) = match next.strip_prefix("next_comm=") {
            Some(next) => {
                let (comm, rest) = next.rsplit_once(" next_pid=")?;
                (comm, number(rest)?)
            }
            None => short_task(next)?,
        };
        Some(Self { prev_comm, prev_pid, preempted: state.starts_with('R'), next_comm, next_pid })
    }
}

/// `sched_waking`, `sched_wakeup` and `sched_wakeup_new`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wakeup {
    /// Thread ID of the task that becomes runnable.
    pub pid: u32,
    /// CPU on whose queue it is put.
    pub target_cpu: Option<u32>,
}

impl Wakeup {
    /// Reads `comm=a pid=1 prio=120 target_cpu=000`, or `a:1 [120] CPU:000` of `trace-cmd report`.
    #[must_use]
    pub fn parse(args: &str) -> Option<Self> {
        if let Some(args) = args.strip_prefix("comm=") {
            let rest = args.rsplit_once(" pid=")?.1;
            let target_cpu = rest.split_once(" target_cpu=").and_then(|(_, cpu)| number(cpu));
            return Some(Self { pid: number(rest)?, target_cpu });
        }
        let (task, cpu) = match args.rsplit_once(" CPU:") {
            Some((task, cpu)) => (task, number(cpu)),
            None => (args, None),
        };
        // Older versions put `success=1` between.
        let task = task.split_once("] ").map_or(task, |(task, _)| task);
        Some(Self { pid: short_task(task)?.1, target_cpu: cpu })
    }
}

/// `comm:pid [prio`, with or without the closing bracket.
fn short_task(text: &str) -> Option<(&str, u32)> {
    let task = text.rsplit_once(" [").map_or(text, |(task, _)| task);
    let (comm, pid) = task.rsplit_once(':')?;
    Some((comm, number(pid)?))
}

/// The number at the beginning of `text`.
fn number(text: &str) -> Option<u32> {
    let end = text.bytes().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switches_of_kernel_and_trace_cmd() {
        let kernel = "prev_comm=exe x prev_pid=47 prev_prio=120 prev_state=R+ ==> next_comm=kworker/0:1 next_pid=10 next_prio=120";
        let expected = Switch {
            prev_comm: "exe x",
            prev_pid: 47,
            preempted: true,
            next_comm: "kworker/0:1",
            next_pid: 10,
        };
        assert_eq!(Switch::parse(kernel), Some(expected));
        assert_eq!(Switch::parse("exe x:47 [120] R+ ==> kworker/0:1:10 [120]"), Some(expected));
        let asleep = Switch::parse("a:1 [120] D|K ==> swapper/0:0 [120]").unwrap();
        assert!(!asleep.preempted && asleep.next_pid == 0);
        assert_eq!(Switch::parse("prev_comm=a prev_pid=x"), None);
        assert_eq!(Switch::parse(" ==> "), None);
    }

    #[test]
    fn wakeups_of_kernel_and_trace_cmd() {
        let expected = Some(Wakeup { pid: 18, target_cpu: Some(1) });
        assert_eq!(Wakeup::parse("comm=rcu pid=18 prio=120 target_cpu=001"), expected);
        assert_eq!(Wakeup::parse("comm=rcu pid=18 prio=120 success=1 target_cpu=001"), expected);
        assert_eq!(Wakeup::parse("rcu:18 [120] CPU:001"), expected);
        assert_eq!(Wakeup::parse("rcu:18 [120] success=1 CPU:001"), expected);
        assert_eq!(Wakeup::parse("nonsense"), None);
    }
}
