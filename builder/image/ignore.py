"""What of the copied files looks like a secret."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from pathspec import GitIgnoreSpec

from builder.config.recipe import Recipe
from builder.layers.entry import Entry, Range
from builder.trees.ignore import Ignore, plain_path

#: Files that usually hold passwords, tokens or private keys, as gitignore patterns.
_SECRETS = """
.env
.env.*
!.env.example
!.env.sample
!.env.template
.netrc
_netrc
.pypirc
.git-credentials
.dockercfg
.htpasswd
.pgpass
.docker/config.json
.aws/credentials
id_rsa
id_dsa
id_ecdsa
id_ed25519
*.p12
*.pfx
*.jks
*.kdbx
credentials
credentials.json
application_default_credentials.json
registry.profile
secrets.yml
secrets.yaml
secrets.json
secrets.toml
"""
#: Files that hold certificates or private keys; only the content tells.
_KEYS = (".pem", ".key")
_PRIVATE_KEY = b"PRIVATE KEY-----"
#: Bytes of such a file that are read.
_KEY_BYTES = 1 << 16
#: Secrets that a warning names.
_SHOWN = 5


def secret_warning(recipe: Recipe, entries: Sequence[Entry]) -> str:
    """The warning about copied files that look like secrets; empty if there are none.

    A line ``!NAME`` in ``.builderignore`` declares that a file is no secret.

    Args:
        recipe: the target.
        entries: what is copied, see :func:`builder.image.recipe_files.recipe_entries`.
    """
    ignore, root = Ignore(recipe.root), plain_path(recipe.root)
    paths = [plain_path(entry.content.source) for entry in entries if isinstance(entry.content, Range)]
    found = [path for path in dict.fromkeys(paths) if _is_secret(path) and not ignore.allows(path)]
    if not found:
        return ""
    names = [path.relative_to(root).as_posix() for path in found[:_SHOWN]]
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    verb = "looks like a secret and is" if len(found) == 1 else "look like secrets and are"
    lines = ", ".join(f"/{name}" for name in names)
    word = "line" if len(names) == 1 else "lines"
    return (
        f"{recipe.source}: files: {', '.join(names)}{more} {verb} copied into the image. To leave "
        f"{'it' if len(found) == 1 else 'them'} out, write the {word} {lines} into {ignore.file}; "
        f"to confirm that it is no secret, !/{names[0]}"
    )


@cache
def _secrets() -> GitIgnoreSpec:
    return GitIgnoreSpec.from_lines(_SECRETS.split())


def _is_secret(path: Path) -> bool:
    if path.suffix in _KEYS:
        with path.open("rb") as file:
            return _PRIVATE_KEY in file.read(_KEY_BYTES)
    return _secrets().match_file(path.as_posix().lstrip("/"))
