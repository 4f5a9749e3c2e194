"""Runs images on a site: container command lines, batch scripts and Slurm."""
