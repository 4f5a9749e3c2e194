"""Solves environment files, and reads and writes lock files in conda-lock's format.

This module imports nothing: reading and checking a lock is fast.

What is asked for:

=================  ==============================================================================
module             what it does
=================  ==============================================================================
``spec``           the content of an environment file, whatever its format
``environment``    reads environment files of conda
``condaspec``      reads one conda spec as conda reads it
``pipsection``     reads lines of pip, and the files that they name
``sourcespec``     reads lines of pip that name a source: git, archives, folders
``manifests``      reads ``pyproject.toml``, ``pixi.toml`` and requirements as environment files
``tomlfile``       reads TOML files of other tools
``othertools``     recognises files of other tools, and what to do with them
``request``        the requests that solvers and builders of wheels receive
=================  ==============================================================================

How it becomes a lock:

=================  ==============================================================================
module             what it does
=================  ==============================================================================
``solve``          :func:`lock_target`: from a recipe to a lock
``imported``       :func:`import_lock`: the same, from the lock of another tool
``condalock``      :func:`conda_lock_target`: the same, with conda-lock
``formats``        reads locks of other tools, a module for each format
``channels``       finds the conda channels of an environment
``conda``          solves conda packages with rattler
``basepython``     takes Python from the base instead
``indexes``        finds the package indexes and find-links of an environment
``pip``            solves pip packages on top of the conda packages
``uv``             runs uv for that
``sourcesolve``    repeats that until all wheels are built
``sdists``         finds source distributions on indexes
``wheels``         chooses the wheel of each pip package
``names``          maps names of conda packages to names of PyPI projects
``urls``           environment variables in URLs
``hints``          what to write where there is no solution
=================  ==============================================================================

What a lock has:

=================  ==============================================================================
module             what it does
=================  ==============================================================================
``file``           reads and writes lock files, and dates them
``record``         what a lock records: the only reader and writer of its ``builder.*`` keys
``inputs``         reads what a lock is made from, once per command; records it in the lock;
                   reports why a lock is stale
``sourcerecords``  records from which sources wheels were built
``groups``         chooses what of a lock goes into the image
``changes``        what differs between two locks
=================  ==============================================================================
"""
