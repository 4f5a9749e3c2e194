"""The shapes of documents of the OCI, as pydantic models. Keys that are not listed may be there."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from builder.core.errors import ImageError

from .documents import AGAIN, SHA256, shown


def _null_is(empty: object) -> BeforeValidator:
    """Return what makes a null the empty value of its type, as in Go."""
    return BeforeValidator(lambda value: empty if value is None else value)


_LIST, _OBJECT = _null_is([]), _null_is({})
_Str = Annotated[str, _null_is("")]
#: A text that can be a variable or an argument.
Text = Annotated[_Str, Field(pattern=r"^[^\x00]*$")]
Sha256 = Annotated[str, Field(pattern=f"^{SHA256}$")]
#: An operating system or architecture.
Name = Annotated[_Str, Field(pattern=r"^[!-~]*$", max_length=64)]
#: The name of a file in an archive.
FileName = Annotated[_Str, Field(pattern=r"^[!-~ ]+$", max_length=1024)]
MediaType = Annotated[_Str, Field(pattern=r"^[!-~ ]*$", max_length=255)]


#: Docker takes a text for a list of one.
_Arguments = Annotated[
    list[Text], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)
]


class Shape(BaseModel):
    """The form of a JSON object. Keys that are not listed may have any value."""

    model_config = ConfigDict(strict=True, extra="allow", defer_build=True)


class _Platform(Shape):
    """What an image runs on, of a descriptor or a config."""

    architecture: Name | None = None
    os: Name | None = None
    variant: Name | None = None


class DescriptorShape(Shape):
    """A descriptor (image-spec, descriptor.md)."""

    mediaType: MediaType = ""
    digest: Annotated[str, Field(max_length=512)]
    size: Annotated[int, Field(ge=0, lt=1 << 63)]
    annotations: dict[str, _Str] | None = None
    platform: _Platform | None = None
    artifactType: MediaType | None = None


class BlobShape(DescriptorShape):
    """A descriptor of something that builder reads, so its hash must be one that builder knows."""

    digest: Sha256


class ManifestShape(Shape):
    """An image manifest, or that of an artifact (image-spec, manifest.md)."""

    mediaType: MediaType | None = None
    artifactType: MediaType | None = None
    config: BlobShape
    layers: Annotated[list[BlobShape], _LIST]
    subject: DescriptorShape | None = None
    annotations: dict[str, _Str] | None = None


class IndexShape(Shape):
    """An image index, or the ``index.json`` of a layout (image-spec, image-index.md)."""

    mediaType: MediaType | None = None
    manifests: Annotated[list[DescriptorShape], _LIST]
    subject: DescriptorShape | None = None
    annotations: dict[str, _Str] | None = None


class _DockerImageShape(Shape):
    """An entry of the ``manifest.json`` of a docker-archive."""

    Config: FileName
    Layers: Annotated[list[FileName], _LIST]
    RepoTags: list[Text] | None = None


class DockerListingShape(Shape):
    images: list[_DockerImageShape]


class _RuntimeShape(Shape):
    """``config``: how a container of the image runs."""

    User: Text | None = None
    Env: list[Text] | None = None
    Entrypoint: _Arguments | None = None
    Cmd: _Arguments | None = None
    WorkingDir: Text | None = None
    StopSignal: Text | None = None
    Labels: dict[str, _Str] | None = None
    ExposedPorts: dict[str, Any] | None = None
    Volumes: dict[str, Any] | None = None


class _HistoryShape(Shape):
    created: Text | None = None
    created_by: str | None = None
    empty_layer: bool | None = None


class RuntimeConfigShape(_Platform):
    """The keys of a config that an image needs to run."""

    created: Text | None = None
    config: _RuntimeShape | None = None
    history: list[Annotated[_HistoryShape, _OBJECT]] | None = None


class _RootfsShape(Shape):
    diff_ids: Annotated[list[Sha256], _LIST] = []


class ConfigShape(RuntimeConfigShape):
    """The config of an image with layers."""

    rootfs: _RootfsShape


def check_shape(shape: type[Shape], value: object, what: str) -> Any:
    """Return a value that has a shape, without nulls where Go reads something empty.

    Raises:
        ImageError: it has another shape; the message names the key.
    """
    try:
        return shape.model_validate(value).model_dump(exclude_unset=True)
    except ValidationError as e:
        first = e.errors(include_url=False, include_context=False, include_input=False)[0]
        key = "".join(_step(part) for part in first["loc"]).removeprefix(".")
        problem = first["msg"][:1].lower() + first["msg"][1:]
        if first["type"] == "model_type":  # pydantic's message names the class
            problem = "input should be an object"
        raise ImageError(f"{what}: {key + ': ' if key else ''}{problem}", AGAIN) from None


def _step(part: int | str) -> str:
    if isinstance(part, int):
        return f"[{part}]"
    return f".{part}" if part.isidentifier() and len(part) <= 60 else f"[{shown(part)}]"
