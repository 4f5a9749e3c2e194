"""The project's own benchmarks: builder compared with other tools. ``make bench`` runs ``__main__``."""
