"""Values and services that every house uses: settings, errors, progress, and the cache.

In reading order:

===============  ==================================================================================
room             content
===============  ==================================================================================
``model``        frozen values that stages hand on: packages, locks, layers, images
``errors``       the tree of exceptions, each with its exit code and a hint
``settings``     what a machine or a user sets, read once
``workspace``    settings, cache and reporter of a command, as one value
``progress``     what a stage reports, to whoever listens
``store``        the cache on disk, atomic files, locks, pruning
``redact``       the only function that removes credentials from text
``datafiles``    scripts and tables beside the modules
``git``          runs git, without settings and programs that others chose
``tarheaders``   reads the headers of a tar, within limits
===============  ==================================================================================

The others (``markers``, ``parallel``, ``text``, ``limits``, ``interrupts``, ``stages``, ``version``) are one
idea each, as their names tell.

This house imports no other one, opens no connection, and prints nothing.

- Why not filelock: ``flock`` fails on Lustre and NFS without a lock server; builder continues then,
  and its own lock names its process, so that a lock of a killed one is removed.
- Why not platformdirs: one line of :mod:`builder.core.settings` knows where the cache is.
"""
