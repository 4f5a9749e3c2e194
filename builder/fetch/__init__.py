"""Downloads of packages: in parallel, resumed, verified by the hashes of the lock."""
