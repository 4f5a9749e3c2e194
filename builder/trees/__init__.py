"""File trees: tar and squashfs read and written, layers merged into one tree, and trees compared."""
