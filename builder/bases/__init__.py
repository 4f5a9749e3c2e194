"""Base images: from registries, layouts, archives, Debian and SIF files."""
