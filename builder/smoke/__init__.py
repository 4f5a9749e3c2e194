"""The smoke test: run the benchmark inside an image, grade its report, compare it with earlier
ones.
"""
