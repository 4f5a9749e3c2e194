"""Locked packages to deterministic tar layers, one blob per package or group, made once and cached."""
