"""Base images: from registries, OCI layouts, archives, Debian and SIF files."""
