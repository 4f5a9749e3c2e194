"""Formats of the Open Container Initiative: image references, manifests, configs and layouts on disk."""
