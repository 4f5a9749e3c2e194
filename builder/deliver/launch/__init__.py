"""Uses finished images: runs a command in one, here or in a job, and tests it.

``images`` chooses the image of a target; ``here`` runs a command in it on this machine, ``srun``
with a plugin of srun, and ``jobs`` writes batch scripts that do. ``smoke`` tests a target,
``pair`` compares two of its images, and ``pulling`` pulls what was published.
"""
