"""House formats."""
