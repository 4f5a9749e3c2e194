"""House build."""
