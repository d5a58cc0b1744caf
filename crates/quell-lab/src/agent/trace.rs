//! ftrace in the guest: set up before a job, read after it.
//!
//! The trace stays in the kernel's buffers until the job is over: reading it meanwhile would put the reader's
//! work on the CPUs that are traced.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use crate::protocol::Tracing;

/// Where [`super::mount_all`] mounts it.
pub(super) const TRACEFS: &str = "/sys/kernel/tracing";

/// How the function graph is printed: with absolute times, tasks and the names of functions that return.
/// `sleep-time` has durations include the time off the CPU, which the analysis then separates.
const OPTIONS: [(&str, &str); 7] = [
    ("funcgraph-abstime", "1"),
    ("funcgraph-cpu", "1"),
    ("funcgraph-proc", "1"),
    ("funcgraph-duration", "1"),
    ("funcgraph-tail", "1"),
    ("funcgraph-irqs", "1"),
    ("sleep-time", "1"),
];

/// Tracing that has been set up, below a tracefs.
#[derive(Debug)]
pub(super) struct Session {
    root: PathBuf,
    /// Functions and events that this kernel does not have.
    pub(super) absent: Vec<String>,
}

impl Session {
    /// Sets everything up and begins to trace.
    ///
    /// Functions and events that the kernel does not have are noted in `absent`.
    pub(super) fn start(root: &Path, tracing: &Tracing) -> io::Result<Self> {
        let mut session = Self { root: root.to_owned(), absent: Vec::new() };
        session.set("tracing_on", "0")?;
        session.set("current_tracer", "nop")?;
        session.set("trace", "")?;
        session.set("buffer_size_kb", &tracing.buffer_kb.to_string())?;
        // The clock of the durations too.
        session.set("trace_clock", "local")?;
        session.set("set_graph_function", "")?;
        session.set("set_ftrace_filter", "")?;
        session.set("current_tracer", "function_graph")?;
        for (name, value) in OPTIONS {
            // Which options there are depends on the version; the reader copes without.
            let _ = session.set(&format!("options/{name}"), value);
        }
        session.add_all("set_graph_function", &tracing.calls)?;
        session.add_all("set_ftrace_filter", &tracing.functions)?;
        for event in &tracing.events {
            if session.set(&format!("events/{}/enable", event.replace(':', "/")), "1").is_err() {
                session.absent.push(event.clone());
            }
        }
        session.set("tracing_on", "1")?;
        Ok(session)
    }

    /// Ends tracing; the buffers keep what they have.
    pub(super) fn stop(&self) -> io::Result<()> {
        self.set("tracing_on", "0")
    }

    /// The trace as text: a line with the functions that could appear in it, what the kernel prints, and how
    /// many events each CPU lost.
    pub(super) fn text(&self) -> io::Result<impl Read + use<>> {
        let filter = fs::read_to_string(self.root.join("set_ftrace_filter")).unwrap_or_default();
        let head = head(&filter);
        Ok(io::Cursor::new(head)
            .chain(File::open(self.root.join("trace"))?)
            .chain(io::Cursor::new(self.lost())))
    }

    fn lost(&self) -> String {
        let mut text = String::new();
        let mut cpu = 0;
        while let Ok(stats) = fs::read_to_string(self.root.join(format!("per_cpu/cpu{cpu}/stats"))) {
            for line in
                stats.lines().filter(|line| line.starts_with("overrun:") || line.starts_with("dropped"))
            {
                let _ = writeln!(text, "# cpu {cpu} {line}");
            }
            cpu += 1;
        }
        text
    }

    fn add_all(&mut self, file: &str, names: &[String]) -> io::Result<()> {
        let path = self.root.join(file);
        let mut added = 0;
        for name in names {
            // One write each: the kernel refuses the whole write for one name that it does not know.
            match File::options().append(true).open(&path)?.write_all(name.as_bytes()) {
                Ok(()) => added += 1,
                Err(_) => self.absent.push(name.clone()),
            }
        }
        if added == 0 && !names.is_empty() {
            let reason = format!("this kernel has none of {}", names.join(", "));
            return Err(io::Error::new(io::ErrorKind::NotFound, reason));
        }
        Ok(())
    }

    fn set(&self, file: &str, value: &str) -> io::Result<()> {
        let path = self.root.join(file);
        fs::write(&path, value).map_err(|error| {
            io::Error::new(error.kind(), format!("cannot write {value:?} to {file}: {error}"))
        })
    }
}

fn head(filter: &str) -> String {
    // Without a filter the file says "#### all functions enabled ####".
    let names: Vec<&str> = filter
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split(' ').next())
        .collect();
    if names.is_empty() { String::new() } else { format!("# functions traced: {}\n", names.join(" ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tracefs() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for dir in ["options", "events/sched/sched_switch", "per_cpu/cpu0"] {
            fs::create_dir_all(root.path().join(dir)).unwrap();
        }
        for file in ["set_graph_function", "set_ftrace_filter"] {
            fs::write(root.path().join(file), "").unwrap();
        }
        fs::write(root.path().join("per_cpu/cpu0/stats"), "entries: 5\noverrun: 7\ndropped events: 0\n")
            .unwrap();
        root
    }

    #[test]
    fn a_session_sets_up_traces_and_reads() {
        let root = tracefs();
        let tracing = Tracing {
            calls: vec![String::from("move")],
            functions: vec![String::from("copy")],
            events: vec![String::from("sched:sched_switch"), String::from("rcu:none")],
            buffer_kb: 64,
        };
        let session = Session::start(root.path(), &tracing).unwrap();
        assert_eq!(session.absent, ["rcu:none"]);
        let read = |file: &str| fs::read_to_string(root.path().join(file)).unwrap();
        assert_eq!(read("tracing_on"), "1");
        assert_eq!(read("current_tracer"), "function_graph");
        assert_eq!(read("set_graph_function"), "move");
        assert_eq!(read("events/sched/sched_switch/enable"), "1");
        session.stop().unwrap();
        assert_eq!(read("tracing_on"), "0");

        fs::write(root.path().join("trace"), "# tracer: function_graph\n").unwrap();
        let mut text = String::new();
        session.text().unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(
            text,
            "# functions traced: copy\n# tracer: function_graph\n# cpu 0 overrun: 7\n# cpu 0 dropped events: 0\n"
        );
    }

    #[test]
    fn an_unfiltered_trace_names_no_functions() {
        assert_eq!(head("#### all functions enabled ####\n"), "");
        assert_eq!(head("b [kvm]\na\n"), "# functions traced: b a\n");
    }

    #[test]
    fn a_kernel_without_tracefs_is_an_error_with_the_file() {
        let tracing = Tracing { calls: vec![], functions: vec![], events: vec![], buffer_kb: 64 };
        let error = Session::start(Path::new("/nonexistent"), &tracing).unwrap_err();
        assert!(error.to_string().contains("tracing_on"), "{error}");
    }
}
