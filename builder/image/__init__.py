"""Base images, and images put together from a base and layers: config, OCI layout, archives, unpacked root file systems."""
