"""A recipe becomes a lock: solves environment files, imports locks, reads and writes lock files.

This module imports nothing: reading and checking a lock is fast. The house builds nothing and
starts no container: who calls it passes a builder of wheels. It takes no version from what this
machine has: all inputs are of the target, or of the files and indexes that the project names.

Recipes and sites are read by ``config``, with their JSON schemas and the site files of the package.

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
``othertools``     the table of foreign lock formats; other files, and what to do with them
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

- Why not resolvelib: rattler solves conda packages, and uv solves PyPI's. Both know their indexes.
- Why not pip-requirements-parser: messages name FILE:LINE, and no line leads out of the project.
- Why not unearth: an index is read for source distributions only, by BUILDER_MIRRORS, with limits,
  and without credentials in messages.
- Locks of pixi are read by rattler, ``pylock.toml`` by packaging, and conda-lock's format, which is
  builder's own, by :mod:`builder.lock.file`, which says why.
"""
