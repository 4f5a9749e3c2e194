"""File trees: reads and writes tar and squashfs, and merges layers into one tree."""
