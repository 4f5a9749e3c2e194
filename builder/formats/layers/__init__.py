"""Turns locked packages into deterministic, cached tar layers: one blob per package or group."""
