"""Reads and writes squashfs 4.0 file systems without other programs."""
