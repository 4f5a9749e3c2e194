"""File trees: tar and squashfs streams in and out, and layers merged as an overlay merges them."""
