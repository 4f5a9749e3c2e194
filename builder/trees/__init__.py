"""File trees: reads and writes tar and squashfs, merges layers into one tree, and compares
trees.
"""
