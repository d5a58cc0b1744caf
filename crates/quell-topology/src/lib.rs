//! CPUs, caches and NUMA nodes of this machine, and a probe of who really shares a cache.
