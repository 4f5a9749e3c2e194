"""House core."""
