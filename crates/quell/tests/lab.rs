//! Guests from boot to end, on a real QEMU with a real kernel. Run by `cargo xtask test --lab`, which sets
//! `QUELL_LAB_TESTS`; elsewhere they print that they were skipped.

use std::collections::BTreeMap;
use std::fs;
use std::num::NonZeroUsize;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use quell_lab::guest::{
    FailureKind, Guest, GuestSpec, JobOutput, Launch, Probe, Qemu, kernel_cmdline, probe,
};
use quell_lab::kernel::{Build, Flavor, Kernel, Source};
use quell_lab::{Cache, Job, QuellCommand, Size, Stop, TRACE_FILE, Tracing, Workload, initramfs};
use quell_migrate::{Call, Case, Plan, Toucher};
use quell_trace::{Class, Options};

struct Lab {
    qemu: Qemu,
    kernel: Kernel,
    initramfs: PathBuf,
    probe: Probe,
    stop: Stop,
}

fn lab() -> Option<Lab> {
    if std::env::var_os("QUELL_LAB_TESTS").is_none() {
        println!("skipped: QUELL_LAB_TESTS is not set (cargo xtask test --lab sets it)");
        return None;
    }
    let repo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let cache = Cache::open().unwrap();
    let stop = Stop::default();
    let jobs = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let source = Source::default();
    let build = Build { repo: &repo, cache: &cache, source: &source, flavor: Flavor::Patched, jobs };
    let kernel = build.run(&stop, &mut |_| ()).unwrap();
    let initramfs = initramfs::build(&cache, Path::new(env!("CARGO_BIN_EXE_quell")), &[]).unwrap();
    let qemu = Qemu::find().unwrap();
    let probe = probe(&cache, &qemu, &kernel, &initramfs, &stop).unwrap();
    Some(Lab { qemu, kernel, initramfs, probe, stop })
}

impl Lab {
    fn launch<'a>(&'a self, spec: &'a GuestSpec, extra: &str) -> Launch<'a> {
        Launch {
            qemu: &self.qemu,
            spec,
            accelerator: self.probe.accelerator,
            kernel: &self.kernel.image,
            initramfs: &self.initramfs,
            cmdline: kernel_cmdline(spec, self.probe.accelerator, extra),
            console_file: None,
        }
    }

    fn boot(&self, spec: &GuestSpec) -> Guest {
        Guest::boot(&self.launch(spec, ""), &self.stop).unwrap().unwrap_or_else(|ended| panic!("{ended:?}"))
    }
}

fn job(workload: Workload) -> Job {
    Job { workload, sysctl: BTreeMap::new(), collect: vec![], trace: None, timeout_s: 300 }
}

fn migrate(pages: u32, samples: u32) -> Workload {
    let case = |call| Case { call, pages, touched_by: Toucher::Other, from: None, to: None };
    Workload::Migrate(Plan { samples, warmup: 1, cpu: 0, cases: vec![case(Call::Noop), case(Call::Move)] })
}

fn two_nodes() -> GuestSpec {
    toml::from_str(r#"nodes = [{ memory = "384M", cpus = "0-1" }, { memory = "256M" }]"#).unwrap()
}

#[test]
fn a_job_goes_in_and_its_samples_logs_and_files_come_out() {
    let Some(lab) = lab() else { return };
    let mut guest = lab.boot(&two_nodes());
    assert_eq!((guest.hello.cpus, guest.hello.nodes.as_slice()), (2, [0, 1].as_slice()));
    assert_eq!(guest.hello.kernel, lab.kernel.info.release);

    let mut output = JobOutput::default();
    let mut request = job(migrate(16, 5));
    request.collect = vec![String::from("/init"), String::from("/proc/version")];
    guest.run(&request, &mut output).unwrap().unwrap();
    assert_eq!(output.samples.len(), 10);
    for sample in &output.samples {
        assert_eq!(
            (sample.counts["failed"], sample.counts["misplaced"], sample.counts["corrupt"]),
            (0, 0, 0)
        );
    }
    let moved = output.vmstat["pgmigrate_success"];
    assert!(moved >= 6 * 16, "{moved} pages moved");
    assert_eq!(output.settings.unwrap().numa_balancing.as_deref(), Some("0"));
    assert!(output.files[0].content.starts_with(b"\x7fELF") && output.files[0].content.len() > 100_000);
    assert!(output.files[1].content.starts_with(b"Linux version"));

    let mut output = JobOutput::default();
    let version = Workload::Quell(QuellCommand { args: vec![String::from("--version")] });
    guest.run(&job(version), &mut output).unwrap().unwrap();
    assert_eq!(output.log, [format!("quell {}", env!("CARGO_PKG_VERSION"))]);

    let ended = guest.end(Duration::from_secs(60));
    assert_eq!((ended.failure, ended.splats.len()), (None, 0), "{}", ended.console);
}

#[test]
fn a_traced_job_sends_a_trace_that_can_be_attributed() {
    let Some(lab) = lab() else { return };
    let mut guest = lab.boot(&two_nodes());
    for (mode, waits) in [("global", true), ("targeted", false)] {
        let mut request = job(migrate(1, 5));
        request.sysctl.insert(String::from("vm.migrate_drain"), mode.to_owned());
        request.trace = Some(Tracing {
            calls: vec![String::from("__x64_sys_move_pages")],
            functions: vec![],
            events: vec![String::from("sched:sched_switch"), String::from("no:such_event")],
            buffer_kb: 16 << 10,
        });
        let mut output = JobOutput::default();
        guest.run(&request, &mut output).unwrap().unwrap();
        assert!(output.log.iter().any(|line| line.contains("no:such_event")), "{:?}", output.log);
        let file = output.files.iter().find(|file| file.path == TRACE_FILE).unwrap();
        let analysis = quell_trace::analyze(file.content.as_slice(), &Options::default()).unwrap();
        assert_eq!((analysis.unreadable_lines, analysis.lost.len()), (0, 0), "{:?}", analysis.notes);
        let noops = analysis.groups.iter().find(|group| group.label.contains("call=noop")).unwrap();
        // One round of warm-up is labeled too.
        assert_eq!((noops.calls, noops.incomplete.len()), (6, 0));
        assert_eq!(noops.breakdown.class_ns(Class::RcuWait) > 0, waits, "{mode}");
        assert_eq!(noops.breakdown.class_ns(Class::RemoteDrain) > 0, waits, "{mode}");
    }
}

#[test]
fn jobs_that_fail_say_why_and_the_guest_goes_on() {
    let Some(lab) = lab() else { return };
    let mut guest = lab.boot(&two_nodes());
    let mut run = |request: &Job| guest.run(request, &mut JobOutput::default()).unwrap();

    let mut request = job(migrate(1, 1));
    request.sysctl.insert(String::from("vm.no_such_knob"), String::from("1"));
    let failure = run(&request).unwrap_err();
    assert_eq!(failure.kind, FailureKind::JobFailed);
    assert!(failure.detail.contains("vm.no_such_knob"), "{failure}");

    let request = Job { timeout_s: 3, ..job(migrate(256, 1_000_000)) };
    assert!(run(&request).unwrap_err().detail.contains("killed after 3 s"));

    // More pages than the other node has: an error of the call, not of the guest.
    let failure = run(&job(migrate(65_536, 1))).unwrap_err();
    assert!(failure.detail.contains("Cannot allocate memory"), "{failure}");
    run(&job(migrate(1, 1))).unwrap();
}

#[test]
fn a_job_that_takes_all_memory_is_killed_and_its_guest_lives() {
    let Some(lab) = lab() else { return };
    let mut guest = lab.boot(&GuestSpec { memory: Some(Size(256 << 20)), ..GuestSpec::default() });
    let case = Case { call: Call::Noop, pages: 65_536, touched_by: Toucher::Same, from: None, to: None };
    let all = Workload::Migrate(Plan { samples: 1, warmup: 0, cpu: 0, cases: vec![case] });
    let failure = guest.run(&job(all), &mut JobOutput::default()).unwrap().unwrap_err();
    assert_eq!(failure.kind, FailureKind::OutOfMemory, "{failure}");
    let query = QuellCommand { args: vec![String::from("--version")] };
    guest.run(&job(Workload::Quell(query)), &mut JobOutput::default()).unwrap().unwrap();
}

#[test]
fn a_guest_that_panics_is_a_reported_failure_with_its_console() {
    let Some(lab) = lab() else { return };
    let spec = GuestSpec::default();
    let ended = Guest::boot(&lab.launch(&spec, "rdinit=/nonexistent init=/nonexistent"), &lab.stop)
        .unwrap()
        .unwrap_err();
    let failure = ended.failure.unwrap();
    assert_eq!(failure.kind, FailureKind::Panic, "{failure}");
    assert!(ended.console.contains("Kernel panic"));
}

#[test]
fn a_guest_with_pinned_cpus_and_memory_to_plug_boots() {
    let Some(lab) = lab() else { return };
    let spec = GuestSpec {
        memory: Some(Size(512 << 20)),
        max_memory: Some(Size(2 << 30)),
        virtio_mem: toml::from_str::<GuestSpec>("virtio_mem = [{ id = \"vmem0\", size = \"1G\" }]")
            .unwrap()
            .virtio_mem,
        pin: vec![0, 0],
        ..GuestSpec::default()
    };
    let ended = lab.boot(&spec).end(Duration::from_secs(60));
    assert_eq!(ended.failure, None, "{}", ended.console);
}

#[test]
fn the_switch_decides_whether_all_cpus_are_drained() {
    let Some(lab) = lab() else { return };
    let mut guest = lab.boot(&two_nodes());
    let mut drains = |mode: &str| {
        let mut request = job(migrate(16, 5));
        request.sysctl.insert(String::from("vm.migrate_drain"), String::from(mode));
        let mut output = JobOutput::default();
        guest.run(&request, &mut output).unwrap().unwrap();
        assert!(output.samples.iter().all(|sample| sample.counts["failed"] == 0));
        let count = |name: &str| output.vmstat.get(name).copied().unwrap_or(0);
        (count("migrate_drain_global"), count("lru_drain_remote"), count("migrate_drain_fallback"))
    };
    // Five samples and a round before them, of two calls each.
    let (global, remote, _) = drains("global");
    assert!(global >= 12 && remote == 0, "{global} global drains, {remote} of single batches");
    let (global, remote, fallback) = drains("targeted");
    assert!(global == 0 && fallback == 0, "{global} global drains, {fallback} fallbacks");
    assert!(remote >= 6, "pages faulted on the other CPU sat in its batch, and {remote} were emptied");
}

/// The QEMUs whose parent is `pid`.
fn guests_of(pid: u32) -> Vec<u32> {
    let parent = |stat: &str| stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse::<u32>().ok();
    let processes = fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let name = entry.ok()?.file_name();
        name.to_str()?.parse::<u32>().ok()
    });
    processes
        .filter(|child| {
            let stat = fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
            parent(&stat) == Some(pid) && stat.contains("(qemu")
        })
        .collect()
}

/// Starts an experiment, sends the signal once its first guest runs, and returns how the lab ended.
fn end_with(signal: Signal, output: &Path) -> ExitStatus {
    let mut lab = Command::new(env!("CARGO_BIN_EXE_quell"))
        .args(["lab", "run", "migrate-batch", "--short", "--output"])
        .arg(output)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let guests = poll(|| Some(guests_of(lab.id())).filter(|guests| !guests.is_empty()));
    kill(Pid::from_raw(lab.id().cast_signed()), signal).unwrap();
    let status = poll(|| lab.try_wait().unwrap());
    // The guest is not reaped by us: gone, or a zombie of whoever adopted it.
    let runs = |pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
    };
    poll(|| guests.iter().all(|pid| !runs(pid)).then_some(()));
    status
}

/// Waits for an answer; gives up after minutes, as the machine may be busy.
fn poll<T>(mut ask: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(240);
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < end, "it took too long");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_lab_that_is_interrupted_or_killed_leaves_no_guest_and_no_file() {
    if lab().is_none() {
        return;
    }
    let output = tempfile::tempdir().unwrap();
    assert_eq!(end_with(Signal::SIGINT, output.path()).code(), Some(2));
    let runs: Vec<_> = fs::read_dir(output.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(runs.len(), 1);
    let text = fs::read_to_string(runs[0].join("run.json")).unwrap();
    let record: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(record["interrupted"], true);
    assert!(record["warnings"].to_string().contains("interrupted after 0 of 8 guests"), "{text}");

    assert_eq!(end_with(Signal::SIGKILL, output.path()).signal(), Some(9));
}
