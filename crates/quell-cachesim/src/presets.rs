//! The machines. `docs/simulator.md` compares Milan with what was measured on a real one.

use crate::config::{
    Backing, Burst, Config, Inclusion, Indexing, L1, Level, Llc, Pause, Placement, Prefetch, Replacement,
    SnoopFilter, Timing, Traffic,
};

impl Config {
    /// An Intel Skylake-SP server with 20 LLC slices.
    ///
    /// Sources: "SDM" is Intel's Software Developer's Manual and the Xeon Scalable datasheets; "`EvCache`"
    /// the sample output of the public artifact of that name, taken on a 20-slice Intel host; "assumed" is
    /// ours.
    #[must_use]
    pub fn skylake_sp() -> Self {
        Self {
            // SDM: 32 KiB, 8 ways.
            l1: L1 { sets: 64, ways: 8 },
            // SDM: 1 MiB, 16 ways. Policy assumed.
            l2: Level { sets: 1024, ways: 16, replacement: Replacement::TreePlru },
            llc: Llc {
                // SDM: 1.375 MiB a slice, 11 ways. Policy: quad-age, i.e. RRIP with two bits; value assumed.
                slice: Level { sets: 2048, ways: 11, replacement: Replacement::Srrip },
                // EvCache.
                slices: 20,
                // SDM: non-inclusive.
                inclusion: Inclusion::NonInclusive,
                // 12 ways: Yan et al. (S&P 2019). Policy assumed; pressure assumed from two thirds of the entries
                // being in use, so that a tenth of the sets has no free way.
                snoop_filter: Some(SnoopFilter { ways: 12, replacement: Replacement::Lru, pressure: 0.1 }),
                // Assumed.
                set_log_sd: 0.25,
                our_ways: 0x7ff,
                their_ways: 0x7ff,
            },
            // SDM: L2 and slices are indexed by address bits from 6 upwards: 16 page colors.
            indexing: Indexing::Direct,
            // Assumed: a host under memory pressure.
            backing: Backing::Small,
            // SDM: adjacent-line and streamer prefetchers into L2; the reach is assumed.
            prefetch: Prefetch { buddy: true, next: 1, stride: true },
            timing: Timing {
                // Assumed: a 2.0 GHz part, whose counter advances by 2 (EvCache prints even values).
                ticks_per_ms: 2_000_000.0,
                step: 2.0,
                // EvCache, with timing: L1 42, L2 50, LLC 72, memory 231. Overhead assumed 38.
                latency: [4.0, 12.0, 34.0, 193.0],
                overhead: 38.0,
                // Assumed: about 30 GB/s from the LLC and 10 GB/s from memory.
                overlapped: [0.5, 1.0, 4.3, 12.8],
                // Assumed.
                between: 60.0,
                // Assumed: a nested walk, and a fifth of it when walks overlap.
                tlb_miss: [90.0, 18.0],
                // SDM: 1,536 entries; rounded down to a power of two.
                tlb_entries: 1024,
                // Assumed.
                flush: 40.0,
                handover: 300.0,
                // Assumed.
                noise: [0.05, 0.12],
                queue_probability: 0.002,
                queue_ticks: 150.0,
            },
            // Assumed, so that an idle host evicts about 20 % in 7 ms (EvCache: 14-28 %).
            neighbors: vec![Traffic {
                per_ms: 93_000.0,
                burst: Burst::LogNormal { log_sd: 0.3, slow_share: 0.36, fast_ms: 7.0, slow_ms: 123.0 },
                reuse: 0.2,
                by_color: Vec::new(),
            }],
            sibling: None,
            polluter: None,
            placement: None,
            // Assumed: a 250 Hz timer tick.
            pauses: vec![Pause { per_ms: 0.25, median_ms: 0.004, log_sd: 0.3, involuntary: 0.0 }],
            // Assumed.
            oversleep_ms: [0.06, 0.4],
            // Linux accounts CPU time in ticks of 10 ms in /proc/stat (USER_HZ 100).
            load_step_ms: 10.0,
        }
    }

    /// An Intel Ice Lake-SP server with 32 LLC slices.
    ///
    /// Sources: "SDM" as for [`Config::skylake_sp`]; whatever is not marked otherwise is taken over from there.
    #[must_use]
    pub fn ice_lake_sp() -> Self {
        let base = Self::skylake_sp();
        Self {
            // SDM: 48 KiB, 12 ways.
            l1: L1 { sets: 64, ways: 12 },
            // SDM: 1.25 MiB, 20 ways. Policy assumed: a tree does not fit 20 ways.
            l2: Level { sets: 1024, ways: 20, replacement: Replacement::Srrip },
            llc: Llc {
                // SDM: 1.5 MiB a slice, 12 ways.
                slice: Level { sets: 2048, ways: 12, replacement: Replacement::Srrip },
                // SDM: a 32-core part.
                slices: 32,
                our_ways: 0xfff,
                their_ways: 0xfff,
                // 16 ways: "Last-Level Cache Side-Channel Attacks Are Feasible in the Modern Public Cloud"
                // (arXiv 2405.12469).
                snoop_filter: Some(SnoopFilter { ways: 16, replacement: Replacement::Lru, pressure: 0.1 }),
                ..base.llc
            },
            timing: Timing {
                // Assumed: a 2.9 GHz part, LLC at 25 ns and memory at 90 ns.
                ticks_per_ms: 2_900_000.0,
                latency: [5.0, 14.0, 62.0, 255.0],
                overlapped: [0.5, 1.0, 5.5, 15.0],
                ..base.timing
            },
            // Assumed: the same pressure on a set as on Skylake-SP.
            neighbors: scaled(&base, 65_536),
            ..base
        }
    }

    /// An Intel Sapphire Rapids server with 56 LLC slices.
    ///
    /// Sources as for [`Config::ice_lake_sp`], from which the rest is taken over.
    #[must_use]
    pub fn sapphire_rapids() -> Self {
        let base = Self::ice_lake_sp();
        Self {
            // SDM: 2 MiB, 16 ways: 32 page colors. Policy assumed.
            l2: Level { sets: 2048, ways: 16, replacement: Replacement::Srrip },
            llc: Llc {
                // SDM: 1.875 MiB a slice, 15 ways.
                slice: Level { sets: 2048, ways: 15, replacement: Replacement::Srrip },
                // SDM: 105 MiB.
                slices: 56,
                our_ways: 0x7fff,
                their_ways: 0x7fff,
                ..base.llc
            },
            timing: Timing {
                // Assumed: a 2.4 GHz counter, LLC at 33 ns and memory at 115 ns.
                ticks_per_ms: 2_400_000.0,
                latency: [5.0, 14.0, 72.0, 270.0],
                ..base.timing
            },
            // Assumed: the same pressure on a set as on Skylake-SP.
            neighbors: scaled(&Self::skylake_sp(), 114_688),
            ..base
        }
    }

    /// An AMD EPYC "Milan" VM with two LLCs of 32 MiB in reach.
    ///
    /// Sources: "PPR" is AMD's Processor Programming Reference for family 19h; "measured" is a 2-vCPU VM on
    /// such a host (see `docs/simulator.md`); "fitted" was chosen so that the simulated measurement gives
    /// the measured figures; "assumed" is neither.
    #[must_use]
    pub fn milan() -> Self {
        let neighbor = Traffic {
            // Fitted: survival and priming loss on an idle VM.
            per_ms: 145_000.0,
            // Fitted: spread and autocorrelation of the log hazard in windows of 2 ms.
            burst: Burst::LogNormal { log_sd: 0.28, slow_share: 0.45, fast_ms: 9.0, slow_ms: 123.0 },
            // Fitted: survival of protected lines against the loss of unprotected ones.
            reuse: 0.5,
            by_color: Vec::new(),
        };
        Self {
            // PPR: 32 KiB, 8 ways.
            l1: L1 { sets: 64, ways: 8 },
            // PPR: 512 KiB, 8 ways, inclusive of L1. Policy assumed.
            l2: Level { sets: 1024, ways: 8, replacement: Replacement::Lru },
            llc: Llc {
                // PPR: 32 MiB, 16 ways. Policy fitted: a hit protects a line, without one it goes soon.
                slice: Level { sets: 4096, ways: 16, replacement: Replacement::LruInsertion { depth: 8 } },
                // PPR: 8 slices.
                slices: 8,
                // PPR: victim cache. Moving the line out on a hit is measured (swaps with L2).
                inclusion: Inclusion::Exclusive,
                // The probe filter sits beyond the LLC.
                snoop_filter: None,
                // Fitted: shape of the survival curve.
                set_log_sd: 0.33,
                our_ways: 0xffff,
                their_ways: 0xffff,
            },
            // Measured: 16 colors, address bits 9-11 permuted by page, guest addresses predict nothing.
            indexing: Indexing::Hashed,
            backing: Backing::Small,
            // Measured: whole pages in random order show 69-70 % false hits, equal strides some.
            prefetch: Prefetch { buddy: true, next: 1, stride: true },
            timing: Timing {
                // Measured.
                ticks_per_ms: 2_445_000.0,
                step: 24.45,
                // Measured with timing: L1 73, L2 76-81, LLC 105-107, memory 320-390.
                latency: [3.0, 9.0, 36.0, 270.0],
                overhead: 70.0,
                // Fitted: four rounds of priming take 0.11-0.16 ms warm and 0.3 ms from memory.
                overlapped: [0.4, 0.8, 4.0, 30.0],
                // Fitted: a probe of 1,024 lines takes 0.16-0.45 ms.
                between: 300.0,
                // Measured: a chase beyond the TLB's reach costs 200-250 more a load. Overlap assumed.
                tlb_miss: [220.0, 40.0],
                // PPR: 2,048 entries of second-level data TLB (8 MiB, as measured), 8 ways.
                tlb_entries: 2048,
                // Assumed.
                flush: 60.0,
                handover: 400.0,
                // Assumed, from the spread between L3 (98-150) and memory (220 and more).
                noise: [0.08, 0.18],
                queue_probability: 0.01,
                queue_ticks: 120.0,
            },
            neighbors: vec![neighbor.clone(), neighbor],
            // Fitted: share of 1,024 lines still in L2 after a touch and spills of several sizes.
            sibling: Some(Traffic {
                per_ms: 30_000.0,
                burst: Burst::LogNormal { log_sd: 0.7, slow_share: 0.5, fast_ms: 9.0, slow_ms: 123.0 },
                reuse: 0.0,
                by_color: Vec::new(),
            }),
            polluter: None,
            // Measured: total losses in 0-4 % of sleeping windows of 2 ms and in 0-0.4 % of spinning ones.
            placement: Some(Placement { dwell_ms: 110.0, calmer_running: 8.0 }),
            // Measured: largest gap of a spinning window of 2 ms has median 0.06, q99 1.6, maximum 9 ms.
            pauses: vec![
                Pause { per_ms: 1.2, median_ms: 0.05, log_sd: 0.35, involuntary: 0.0 },
                Pause { per_ms: 0.085, median_ms: 0.3, log_sd: 1.1, involuntary: 0.1 },
            ],
            // Measured: 0.13 ms on average.
            oversleep_ms: [0.12, 0.4],
            // Linux accounts CPU time in ticks of 10 ms in /proc/stat (USER_HZ 100).
            load_step_ms: 10.0,
        }
    }
    /// An AMD EPYC "Genoa" VM with two LLCs of 32 MiB in reach.
    ///
    /// Milan with the larger L2 of Zen 4 (AMD's Processor Programming Reference for family 19h, model 11h: 1 MiB,
    /// 8 ways). That its index is hashed as on Milan, and everything else, is assumed.
    #[must_use]
    pub fn genoa() -> Self {
        let base = Self::milan();
        Self { l2: Level { sets: 2048, ..base.l2 }, ..base }
    }
}

/// The neighbors of `base` with the same insertions per set into an LLC of `sets` sets.
fn scaled(base: &Config, sets: u32) -> Vec<Traffic> {
    let factor = f64::from(sets) / f64::from(base.llc_sets());
    base.clone().scale_neighbors(factor).neighbors
}
