"""The public names, for type checkers and editors; ``__init__.py`` reads where each is defined."""

from builder.build.engines.base import BuildResult as BuildResult
from builder.core.errors import BuilderError as BuilderError
from builder.core.model import Lock as Lock
from builder.core.settings import Settings as Settings
from builder.core.stages import BuildOptions as BuildOptions
from builder.core.stages import LockOptions as LockOptions
from builder.deliver.doctor import Finding as Finding
from builder.deliver.doctor import examine_host as examine_host
from builder.deliver.launch.images import target_images as target_images
from builder.deliver.launch.smoke import SmokeOutcome as SmokeOutcome
from builder.deliver.launch.smoke import SmokeRequest as SmokeRequest
from builder.deliver.launch.smoke import smoke_target as smoke_target
from builder.deliver.project import Project as Project
from builder.deliver.publishing.publish import Published as Published
from builder.deliver.publishing.publish import PublishOptions as PublishOptions
from builder.deliver.publishing.publish import publish as publish
from builder.deliver.smoke.options import SmokeOptions as SmokeOptions
from builder.deliver.smoke.run import SmokeReport as SmokeReport
from builder.lock.config.recipe import Recipe as Recipe

__version__: str
__all__: list[str]
