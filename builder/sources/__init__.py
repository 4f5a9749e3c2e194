"""Sources of packages, pinned: git repositories, archives and folders of the project.

==============  ========================================================================================
module          what it does
==============  ========================================================================================
``tree``        :func:`open_source`: any source as an unpacked tree
==============  ========================================================================================
"""

from __future__ import annotations

from builder.sources.tree import SourceTree, open_source

__all__ = ["SourceTree", "open_source"]
