"""builder: conda environments to container images, assembled straight from locked packages."""

__version__ = "0.1.0"
