"""JSON documents of the OCI from any source, read with bounds and checked strictly.

What other people wrote is never used before its shape is known. A wrong type, a negative size, or a
key that occurs twice is an :class:`~builder.core.errors.ImageError` that names the document and the
key.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from builder.core.errors import ImageError
from builder.core.store.reading import Reader
from builder.core.text import human_bytes, listed

#: In bytes: a manifest, index or config. containerd, Docker and skopeo accept 4 to 8 MiB; real ones have less
#: than 1 MiB.
MAX_DOCUMENT = 8 << 20
#: Objects and lists in each other. Documents of the OCI have 5 levels.
MAX_JSON_DEPTH = 64
#: Characters that a message shows of a key that someone else wrote.
_SHOWN = 60
#: Names that a hint lists.
_LISTED = 50
#: The hints of errors about a document beyond a limit, and about others.
DAMAGED = "the image is damaged or hostile: download or write it again"
AGAIN = "download or write the image again"
_WITHOUT_LINKS = f"let this user read the folder, and copy it without links: cp -rL; or {AGAIN}"


def load_json(data: bytes, what: str, most: int = MAX_DOCUMENT) -> Any:
    """Return a JSON value of any type, which all readers understand in the same way.

    Args:
        data: its bytes, in UTF-8.
        what: its name, for messages.
        most: bytes that it may have.

    Raises:
        ImageError: it is not JSON, too large, nested too deeply, or ambiguous: a key occurs twice,
            a number is not finite, or a text is not Unicode.
    """
    check_size(len(data), what, most)
    try:
        text = data.decode()
        value = json.loads(
            text,
            object_pairs_hook=_object,
            parse_constant=_refuse_constant,
            parse_float=_finite_number,
        )
        if "\\u" in text:
            # half of a surrogate pair cannot be encoded
            json.dumps(value, ensure_ascii=False).encode()
    except ValueError as e:
        raise ImageError(f"{what} is not JSON: {e}", AGAIN) from None
    except RecursionError:
        raise _too_deep(what) from None
    if is_deeper(value, MAX_JSON_DEPTH):
        raise _too_deep(what)
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {shown(twice)} occurs twice")
    return found


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number")


def _finite_number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number is too large")
    return number


def is_deeper(value: object, most: int) -> bool:
    """Return whether lists and mappings are nested more than ``most`` levels deep, without recursion."""
    level = [value]
    for _ in range(most):
        level = [child for parent in level for child in _children(parent)]
    return bool(level)


def _children(value: object) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _too_deep(what: str) -> ImageError:
    return ImageError(f"{what} is nested more than {MAX_JSON_DEPTH} levels deep", DAMAGED)


def shown(text: str) -> str:
    """Return a text as a message can show it: short, in quotes, without control characters."""
    return ascii(text if len(text) <= _SHOWN else text[:_SHOWN] + "...")


def some(names: Iterable[str]) -> str:
    """Return names of a document as a hint can list them: sorted, and not more than fit."""
    known = sorted(set(names))
    texts = [n if n.isprintable() and len(n) <= _SHOWN else shown(n) for n in known]
    return listed(texts, _LISTED) or "none"


# texts of documents ---------------------------------------------------------------------------------------

SHA256 = r"sha256:[0-9a-f]{64}"
_SHA512 = r"sha512:[0-9a-f]{128}"
#: Other algorithms, which builder does not know: an index may list what they name.
_OTHER = r"(?!sha256:|sha512:)[a-z0-9]+(?:[+._-][a-z0-9]+)*:[A-Za-z0-9=_-]{1,256}"
_ANY_DIGEST = re.compile(f"{SHA256}|{_SHA512}|{_OTHER}")


def check_digest(digest: str, what: str) -> None:
    """Raise ImageError unless a text has the form of a digest (image-spec, descriptor.md)."""
    if not _ANY_DIGEST.fullmatch(digest):
        raise ImageError(f"{what}: {shown(digest)} is not a digest", AGAIN)


def check_size(size: int, what: str, most: int = MAX_DOCUMENT) -> None:
    """Raise ImageError for a document with more bytes than allowed; call it before it is read."""
    if size > most:
        sizes = f"{human_bytes(size)}, at most {human_bytes(most)} are allowed"
        raise ImageError(f"{what} is too large: {sizes}", DAMAGED)


#: Keys with a meaning in manifests, indexes and descriptors, by their spelling in small letters.
_KEY_NAMES = (
    "annotations artifactType config data digest fsLayers layers manifests mediaType platform "
    "schemaVersion size subject urls"
)
_KEYS = {key.casefold(): key for key in _KEY_NAMES.split()}


def refuse_look_alikes(value: Mapping[str, Any], what: str) -> None:
    """Raise ImageError when a key differs from one with a meaning by case only.

    Programs in Go take ``Layers`` for ``layers``: one digest would name two images.
    """
    for key in value:
        if _KEYS.get(key.casefold(), key) != key:
            raise ImageError(f"{what}: {shown(key)} is spelled {_KEYS[key.casefold()]}", AGAIN)


# files ------------------------------------------------------------------------------------------------------


def read_document(path: Path, most: int = MAX_DOCUMENT) -> bytes:
    """Return the content of a small file in a folder that other people may have written.

    Args:
        path: the file. Links are not followed, and a pipe or device is not opened.
        most: bytes that it may have.

    Raises:
        ImageError: it is not an ordinary file, larger, or cannot be read.
        FileNotFoundError: it does not exist.
    """
    return Reader(ImageError, _WITHOUT_LINKS, most, links=False).read(path)


def file_size(path: Path) -> int:
    """Return the bytes of a file of any size in such a folder. Raises as :func:`read_document`."""
    with Reader(ImageError, _WITHOUT_LINKS, links=False).open(path) as (_, info):
        return info.st_size
