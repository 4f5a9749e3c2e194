"""Formats of the Open Container Initiative: references, digests, manifests, configs, layouts."""
