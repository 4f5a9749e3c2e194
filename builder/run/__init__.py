"""Runners: ways to run an image on this host."""
