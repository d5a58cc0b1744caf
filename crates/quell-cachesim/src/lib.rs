//! Deterministic cache hierarchy with ground truth, for testing cache measurements.
