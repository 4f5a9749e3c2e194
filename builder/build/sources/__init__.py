"""Sources of packages, pinned: git repositories, archives and folders of the project.

==============  ========================================================================================
module          what it does
==============  ========================================================================================
``tree``        :func:`open_source`: any source as an unpacked tree
``repository``  git repositories: from a URL and a revision to a commit in the cache
``objects``     unpacks a commit from git's objects, with its submodules; no git checkout takes place
``scm``         ``git describe``, for build backends that make the version from tags
``archive``     downloads and unpacks sdists and other archives
``target``      the folder that receives a tree: no member leaves it
``bounds``      how large a source may be
==============  ========================================================================================
"""

from __future__ import annotations

from .tree import SourceTree, open_source

__all__ = ["SourceTree", "open_source"]
