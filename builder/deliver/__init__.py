"""House deliver."""
