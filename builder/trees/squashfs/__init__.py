"""squashfs 4.0 file systems, read and written without other programs."""
