"""The container runtimes of sites: each family is a class, and ``table`` finds that of a target.

``runtime`` is what all runtimes share, and what jobs, runs, publishing and smoke tests ask.
``engines`` are docker, podman and podman-hpc, ``sif`` is Singularity and Apptainer, ``plugins`` are
pyxis and CSCS's Container Engine, which srun loads, and ``own`` is builder's own.
"""
