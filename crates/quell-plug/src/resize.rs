//! Asking a device for another size, and watching the guest follow.

use std::thread;
use std::time::{Duration, Instant};

use qapi::qmp;
use serde::Serialize;

use crate::error::{PlugError, Result};
use crate::{Device, Qmp, Size, find};

/// How often the size is asked for: a plug of some GiB takes a few tenths of a second.
const POLL: Duration = Duration::from_millis(10);

/// A guest whose size changed within so many seconds has not given up.
const STILL_AT_IT_S: f64 = 2.0;

/// How to resize.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Wait until the guest has followed, instead of returning once QEMU has taken the request.
    pub wait: bool,
    /// Give up waiting after this time; the request stays.
    pub timeout: Duration,
}

/// How far a resize is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Size before.
    pub from: Size,
    /// Size now.
    pub now: Size,
    /// Size asked for.
    pub to: Size,
}

/// How a resize ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ending {
    /// The device has the size asked for.
    Plugged,
    /// It was not waited for.
    NotAwaited,
    /// It had not by the time limit.
    TimedOut,
    /// The user ended the wait; the request stays.
    Interrupted,
}

/// What became of a resize.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// Id of the device.
    pub device: String,
    /// Size before, in bytes.
    pub from_bytes: u64,
    /// Size asked for, in bytes.
    pub to_bytes: u64,
    /// Size at the end, in bytes.
    pub size_bytes: u64,
    /// How it ended.
    pub ending: Ending,
    /// From the request until the size was seen as asked for, in seconds; `None` unless it was.
    pub plugged_s: Option<f64>,
    /// From the request until the guest plugged or unplugged anything, in seconds; `None` if it has not.
    pub first_change_s: Option<f64>,
    /// For how long the size has not changed when the wait ended, in seconds.
    pub still_s: f64,
}

impl Outcome {
    /// Bytes plugged or unplugged per second, in units of 10⁹; `None` unless the size asked for was reached.
    #[must_use]
    pub fn gb_per_s(&self) -> Option<f64> {
        let bytes = self.to_bytes.abs_diff(self.from_bytes) as f64;
        self.plugged_s.filter(|seconds| *seconds > 0.0).map(|seconds| bytes / seconds / 1e9)
    }

    /// Why the guest has probably not followed, and what to do; `None` if it has, or nobody waited.
    #[must_use]
    pub fn explanation(&self) -> Option<String> {
        if self.ending != Ending::TimedOut {
            return None;
        }
        if self.first_change_s.is_some() && self.still_s < STILL_AT_IT_S {
            return Some(String::from("The guest was still at it, and goes on: wait longer with --timeout."));
        }
        let grow = self.to_bytes > self.from_bytes;
        let text = match (grow, self.first_change_s.is_some()) {
            (true, false) => {
                "The guest has plugged nothing: it runs no virtio-mem driver (CONFIG_VIRTIO_MEM), has not booted yet, or has no free memory for the page structures of new memory (1/64 of it)."
            }
            (true, true) => {
                "The guest has plugged a part. It goes on by itself; if not, it has no free memory for the page structures of new memory (1/64 of it), or QEMU refuses (a migration is running, or the host has no memory): look at the guest's kernel log."
            }
            (false, _) => {
                "The guest gives back only what it can empty. Memory in use by its kernel cannot be moved; memory plugged as ZONE_MOVABLE (memhp_default_state=online_movable) can. It tries again by itself after some minutes."
            }
        };
        Some(text.to_owned())
    }
}

/// Asks the device `id` for `to` bytes and, if told so, waits until the guest has plugged or unplugged them. A request that
/// is not met in time stays with the guest, which goes on.
///
/// # Errors
/// If the device does not exist or cannot have that size, or QEMU does not answer.
pub fn resize(
    qmp: &mut Qmp,
    id: &str,
    to: Size,
    options: Options,
    stop: &dyn Fn() -> bool,
    on_progress: &mut dyn FnMut(Progress),
) -> Result<Outcome> {
    let before = find(qmp, id)?;
    check(&before, id, to)?;
    let start = Instant::now();
    qmp.execute(&qmp::qom_set {
        path: format!("/machine/peripheral/{id}"),
        property: String::from("requested-size"),
        value: to.0.into(),
    })
    .map_err(|error| PlugError::Qmp { what: "take the new size", reason: error.to_string() })?;
    let seconds = |since: Instant| since.elapsed().as_secs_f64();
    let mut outcome = Outcome {
        device: id.to_owned(),
        from_bytes: before.size.0,
        to_bytes: to.0,
        size_bytes: before.size.0,
        ending: Ending::NotAwaited,
        plugged_s: None,
        first_change_s: None,
        still_s: 0.0,
    };
    let mut changed = start;
    loop {
        let now = find(qmp, id)?.size;
        if now.0 != outcome.size_bytes {
            outcome.first_change_s.get_or_insert(seconds(start));
            outcome.size_bytes = now.0;
            changed = Instant::now();
        }
        on_progress(Progress { from: before.size, now, to });
        if now == to {
            outcome.ending = Ending::Plugged;
            outcome.plugged_s = Some(seconds(start));
        } else if !options.wait {
            outcome.ending = Ending::NotAwaited;
        } else if stop() {
            outcome.ending = Ending::Interrupted;
        } else if start.elapsed() >= options.timeout {
            outcome.ending = Ending::TimedOut;
        } else {
            thread::sleep(POLL);
            continue;
        }
        outcome.still_s = seconds(changed);
        return Ok(outcome);
    }
}

fn check(device: &Device, id: &str, to: Size) -> Result<()> {
    let bad = |reason: String| Err(PlugError::BadSize { id: id.to_owned(), size: to, reason });
    if to > device.max {
        return bad(format!("it can have at most {}", device.max));
    }
    if device.block.0 > 0 && !to.0.is_multiple_of(device.block.0) {
        let below = Size(to.0 / device.block.0 * device.block.0);
        return bad(format!("it plugs blocks of {}; {below} is a multiple of that", device.block));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device() -> Device {
        Device {
            id: Some(String::from("vmem0")),
            node: 0,
            block: Size(2 << 20),
            max: Size(8 << 30),
            requested: Size(0),
            size: Size(0),
        }
    }

    #[test]
    fn sizes_that_the_device_cannot_have_are_refused_with_one_that_it_can() {
        check(&device(), "vmem0", Size(8 << 30)).unwrap();
        check(&device(), "vmem0", Size(0)).unwrap();
        let refused = |bytes| check(&device(), "vmem0", Size(bytes)).unwrap_err().to_string();
        assert_eq!(refused(9 << 30), "vmem0 cannot be resized to 9G: it can have at most 8G");
        assert!(refused((5 << 20) + 4096).ends_with("blocks of 2M; 4M is a multiple of that"));
    }

    fn outcome(from: u64, to: u64, size: u64, ending: Ending) -> Outcome {
        Outcome {
            device: String::from("vmem0"),
            from_bytes: from,
            to_bytes: to,
            size_bytes: size,
            ending,
            plugged_s: (ending == Ending::Plugged).then_some(2.0),
            first_change_s: (size != from).then_some(0.1),
            still_s: 60.0,
        }
    }

    #[test]
    fn the_rate_counts_both_ways_and_only_what_was_reached() {
        assert_eq!(outcome(0, 4_000_000_000, 4_000_000_000, Ending::Plugged).gb_per_s(), Some(2.0));
        assert_eq!(outcome(4_000_000_000, 0, 0, Ending::Plugged).gb_per_s(), Some(2.0));
        assert_eq!(outcome(0, 4_000_000_000, 1, Ending::TimedOut).gb_per_s(), None);
    }

    #[test]
    fn a_guest_that_does_not_follow_is_explained() {
        let text = |from, to, size| outcome(from, to, size, Ending::TimedOut).explanation().unwrap();
        assert!(text(0, 8, 0).contains("no virtio-mem driver"));
        assert!(text(0, 8, 4).contains("plugged a part"));
        assert!(text(8, 0, 8).contains("only what it can empty"));
        let moving = Outcome { still_s: 0.1, ..outcome(0, 8, 4, Ending::TimedOut) };
        assert!(moving.explanation().unwrap().contains("still at it"));
        assert_eq!(outcome(0, 8, 8, Ending::Plugged).explanation(), None);
    }
}
