"""Formats of the Open Container Initiative: image references, digests, manifests, configs, and image layouts on disk."""
