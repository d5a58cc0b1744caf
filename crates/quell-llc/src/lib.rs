//! Measures last-level-cache contention from inside a virtual machine, with no help from the hypervisor.

#![deny(unsafe_code)]

pub mod hw;
