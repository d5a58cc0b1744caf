//! Measures last-level-cache contention from inside a virtual machine.
