"""The cache on disk (``BUILDER_CACHE``). Removing any part of it costs time, never a result.

==================  =====================================================================================
module              content
==================  =====================================================================================
``folders``         the list of all folders of the cache, each with its purpose and its prune rule
``blobs``           :class:`Store`: packages, layers and images by digest, and locks between builds
``fingerprints``    which files were hashed, so that they are hashed again only after a change
``records``         small JSON files that carry their own hash
``files``           atomic writes, digests of files, checks for free space
``durable``         files that survive a power loss
``locks``           locks between processes, also on file systems without them
``unchanged``       what a command read, so that it is not run again while that is the same
``running``         which commands use the cache now
``subordinate``     ranges of subordinate ids
``unpacked``        unpacked images and layers, and who uses them
``temporary``       names of files that are being written
``leftovers``       the removal of the temporary files that killed builds left
``walk``            trees of any depth, and their removal
``prune``           the size of the cache, and the removal of what was not used for a while
==================  =====================================================================================
"""
