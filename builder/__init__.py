"""builder: container images from conda environments, verified to run at full speed on the target GPU."""

from builder.version import __version__

__all__ = ["__version__"]
