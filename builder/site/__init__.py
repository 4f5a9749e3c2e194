"""Runs images on a site, with the recipe's ``site`` part: container command lines, batch scripts,
Slurm and Ray."""
