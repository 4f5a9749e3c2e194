"""The smoke test: runs the benchmark in an image, grades its report, compares it with others."""
