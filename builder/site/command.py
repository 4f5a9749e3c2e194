"""Command lines of a site's own container runtime, for running there and for job scripts."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from builder.config.recipe import Recipe
from builder.config.site import Additions, Site
from builder.errors import RunnerError, UsageError
from builder.run.process import Completed, execute
from builder.site.shell import ShellText, expand, from_user, join, map_literal

#: Names of the prefixes by which variables of the host reach a container with a clean environment.
PREFIX = {"singularity": "SINGULARITYENV_", "apptainer": "APPTAINERENV_"}
_CSV = re.compile(r'[",\n]')


def image_reference(recipe: Recipe, account: str = "") -> str:
    """What the site's runtime calls the image of a target: a SIF in the site's folder of images, or the registry's first tag.

    ``{account}`` in the recipe's ``site.images`` becomes the account, or Slurm's variable for it. Gives a
    :class:`~builder.site.shell.ShellText` where the recipe's folder names variables.

    Raises:
        UsageError: the recipe does not say.
    """
    if recipe.site.runtime.takes_sif:
        folder = recipe.site.images.replace("{account}", account.replace("$", "$$") or "$SLURM_JOB_ACCOUNT")
        return join(
            ShellText(folder), f"{'/' if folder and not folder.endswith('/') else ''}{recipe.name}.sif"
        )
    if not recipe.registry.repository:
        raise UsageError(
            f"{recipe.source}: registry names no repository to take the image from",
            "say which with --image REF",
        )
    tag = next((t for t in recipe.registry.tags if "%" not in t), "latest")
    return "/".join(filter(None, (recipe.registry.host, recipe.registry.repository))) + f":{tag}"


def site_sif(recipe: Recipe, account: str, environ: Mapping[str, str]) -> Path | None:
    """The file that the site's jobs run, if this machine is of that site: it has its folder, or the folder for that."""
    if not recipe.site.runtime.takes_sif or not recipe.site.images:
        return None
    try:
        path = Path(expand(image_reference(recipe, account), environ))
    except RunnerError:  # a variable of the site is not set
        return None
    folder = path.parent
    here = folder.is_dir() or (
        folder.parent.is_dir() and len(folder.parts) > 2
    )  # nothing at / for a variable that is empty
    return path if path.is_absolute() and here else None


def site_command(
    recipe: Recipe,
    image: str,
    command: Sequence[str],
    *,
    gpus: int | None = None,
    binds: Sequence[str] = (),
    env: Mapping[str, str | None] | None = None,
    interactive: bool = False,
    workdir: str | None = None,
    ranks: bool = False,
    additions: Sequence[Additions] = (),
    options: Sequence[str] = (),
) -> list[str]:
    """The command line with which the site's runtime runs a command in an image.

    Words that are :class:`~builder.site.shell.ShellText` hold variables of the machine that runs them.

    Args:
        image: a reference or file, as :func:`image_reference` gives it.
        command: empty: the recipe's own.
        gpus: how many; None for all of the node, 0 for none.
        binds: ``SOURCE[:TARGET[:ro]]``, beside the site's.
        env: variables beside the site's; None as value hands on that of the host, if it is set, without writing it down.
        interactive: with a terminal.
        workdir: the folder to start in; a folder of the host is to be among the binds.
        ranks: the command is one of several that talk to each other.
        additions: of the network, of MPI.
        options: further ones of the runtime.

    Raises:
        UsageError: more GPUs than the node has, a bind or variable that cannot be.
    """
    site = recipe.site
    check_gpus(recipe, gpus)
    runtime = site.runtime
    variables: dict[str, str | None] = {}
    for source in (runtime.env, *(a.env for a in additions)):
        variables |= {k: ShellText(v) for k, v in source.items()}
    variables |= env or {}
    if bad := [k for k in variables if not re.fullmatch(r"[A-Za-z_]\w*", k)]:
        raise UsageError(f"{bad[0]!r} cannot be the name of a variable", "write --env NAME=VALUE")
    mounts = [_bind(ShellText(b)) for b in (*runtime.binds, *(b for a in additions for b in a.binds))]
    mounts = list(dict.fromkeys([*mounts, *(_bind(b) for b in binds)]))
    devices = _gpu_options(site, gpus) if recipe.gpu.vendor != "none" else []
    more = [ShellText(o) for a in additions for o in a.options]
    if runtime.kind == "userns":
        return _userns(recipe, command, mounts, variables, workdir)
    if runtime.takes_sif:
        return _sif_command(recipe, image, command, [*devices, *more, *options], mounts, variables, workdir)
    words = [
        runtime.command,
        "run",
        "--rm",
        *(["-it"] if interactive else []),
        *(ShellText(o) for o in runtime.options),
        *devices,
    ]
    words += [w for g in runtime.groups for w in ("--group-add", g)]
    words += [f"--shm-size={runtime.shm_size}"] if runtime.shm_size else []
    words += [ShellText(o) for o in runtime.ranks] if ranks else []
    words += [*more, *options]
    words += [
        w
        for source, target, mode in mounts
        for w in ("-v", join(source, ":", target, f":{mode}" if mode else ""))
    ]
    words += [w for k, v in variables.items() for w in ("-e", k if v is None else join(k, "=", v))]
    words += ["-w", workdir] if workdir else []
    return [*words, image, *command]


def check_gpus(recipe: Recipe, gpus: int | None) -> None:
    """Refuses a number of GPUs that a node of the site does not have. Raises UsageError."""
    have = recipe.site.node.gpus
    if gpus is not None and gpus > have:
        raise UsageError(
            f"{gpus} GPUs asked for, but a node of {recipe.site.title or recipe.name} has {have or 'none'}",
            f"ask for at most {have}"
            + (" a node, and for more nodes with --nodes" if recipe.site.slurm else ""),
        )
    if gpus is not None and gpus < 0:
        raise UsageError(f"--gpus {gpus} cannot be", "write a number from 0")


def _gpu_options(site: Site, gpus: int | None) -> list[str]:
    if gpus == 0 or not site.node.gpus:
        return []
    some = gpus is not None and gpus < site.node.gpus
    count = str(gpus) if some else "all"
    runtime = site.runtime
    each = [
        w.replace("{render}", str(128 + i)).replace("{index}", str(i))
        for i in range(gpus or 0)
        for w in runtime.gpu_each
    ]
    words = [
        *(w.replace("{count}", count) for w in runtime.gpu),
        *(each if some and each else runtime.gpu_all),
    ]
    return [ShellText(w) for w in words]


def _bind(text: str) -> tuple[str, str, str]:
    """Source, target and mode of ``SOURCE[:TARGET[:MODE]]``."""
    word = type(text) if isinstance(text, ShellText) else str
    source, _, rest = text.partition(":")
    target, _, mode = rest.partition(":")
    if (
        mode not in ("", "ro", "rw")
        or not source
        or "," in text
        or (target and not target.startswith(("/", "$")))
    ):
        raise UsageError(
            f"--bind {text}: cannot be read",
            "write SOURCE, SOURCE:TARGET or SOURCE:TARGET:ro, TARGET from the root",
        )
    return word(source), word(target or source), mode


def _sif_command(
    recipe: Recipe,
    image: str,
    command: Sequence[str],
    options: Sequence[str],
    mounts: Sequence[tuple[str, str, str]],
    variables: Mapping[str, str | None],
    workdir: str | None,
) -> list[str]:
    runtime = recipe.site.runtime
    words = [runtime.command, "exec", *(["--cleanenv"] if runtime.clean_env else [])]
    words += [*(ShellText(o) for o in runtime.options), *options]
    if mounts:
        parts = [
            join(s, "" if s == t and not m else join(":", t, f":{m}" if m else "")) for s, t, m in mounts
        ]
        words += ["--bind", join(*(w for i, p in enumerate(parts) for w in ((",", p) if i else (p,))))]
    for name, value in variables.items():
        if value is not None:  # else it comes by the process's environment
            words += ["--env", _env_word(name, value, evaluates(recipe.site))]
    if workdir is None and not command and recipe.workdir != "/":
        workdir = recipe.workdir
    words += ["--pwd", workdir] if workdir else []
    return [*words, image, *(command or recipe.cmd)]


def _env_word(name: str, value: str, evaluated: bool) -> str:
    """``NAME=VALUE`` for ``--env``, which reads CSV where a second ``=`` stands, and evaluates values like a shell."""
    if evaluated:
        value = map_literal(value, _escaped)
    if "=" in value and _CSV.search(value):
        return join('"', name, "=", map_literal(value, lambda t: t.replace('"', '""')), '"')
    if value.startswith('"') or value.endswith('"'):
        raise UsageError(
            f"{name}: a value that begins or ends with a double quote cannot be given to apptainer or singularity",
            "write it without, or into a file",
        )
    return join(name, "=", value)


def evaluates(site: Site) -> bool:
    """Whether the runtime reads the values of variables as a shell would: ``$`` and backquotes in them do something."""
    return site.runtime.takes_sif and "--no-eval" not in site.runtime.options


def _escaped(text: str) -> str:
    return re.sub(r"[\\$`]", r"\\\g<0>", text)


def _userns(
    recipe: Recipe,
    command: Sequence[str],
    mounts: Sequence[tuple[str, str, str]],
    variables: Mapping[str, str | None],
    workdir: str | None,
) -> list[str]:
    words = ["builder", "run", recipe.name]
    words += [w for s, t, m in mounts for w in ("--bind", join(s, ":", t, f":{m}" if m else ""))]
    words += [w for k, v in variables.items() for w in ("--env", k if v is None else join(k, "=", v))]
    words += ["--workdir", workdir] if workdir else []
    return [*words, *(["--", *command] if command else [])]


# running it -----------------------------------------------------------------------------------------------------------


def handed_on(site: Site, names: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Variables for the runtime's own process, by which host variables pass a clean environment."""
    prefix = PREFIX.get(site.runtime.kind)
    if prefix is None or not site.runtime.clean_env:
        return {}
    wanted = (*site.runtime.pass_env, *names)
    found = {
        k: v for k, v in environ.items() if k.startswith(wanted) and not k.startswith(tuple(PREFIX.values()))
    }
    return {f"{prefix}{k}": _escaped(v) if evaluates(site) else v for k, v in found.items()}


def run_site(
    recipe: Recipe,
    words: Sequence[str],
    *,
    names: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    capture: bool = False,
    timeout_s: float | None = None,
) -> Completed:
    """Runs a command line of :func:`site_command` on this machine.

    Args:
        names: variables of the host that the container is to have.

    Raises:
        RunnerError: the runtime is not here, a variable of the recipe is not set, a SIF is missing.
    """
    environ = os.environ if environ is None else environ
    runtime = recipe.site.runtime
    plain = [expand(w, environ) for w in words]
    if shutil.which(plain[0], path=environ.get("PATH")) is None:
        raise RunnerError(
            f"{plain[0]} is not on this machine, and {recipe.site.title or recipe.name} runs images with it",
            "print the command with --print and run it there, or run the image here with builder smoke",
        )
    for folder in runtime.folders:
        Path(expand(ShellText(folder), environ)).mkdir(parents=True, exist_ok=True)
    return execute(
        plain, env={**environ, **handed_on(recipe.site, names, environ)}, capture=capture, timeout_s=timeout_s
    )


def check_image(reference: str, environ: Mapping[str, str]) -> None:
    """Refuses a SIF (or a sandbox folder) that is not there. Raises RunnerError."""
    path = Path(expand(reference, environ))
    if not path.exists():
        raise RunnerError(
            f"{path}: no such image", f"fetch it: builder pull TARGET --output {path}, or say --image FILE"
        )


def parse_env(items: Sequence[str]) -> dict[str, str | None]:
    """``NAME=VALUE`` and ``NAME`` (the host's value) as a person gives them.

    Raises:
        UsageError: no such name can be.
    """
    out: dict[str, str | None] = {}
    for item in items:
        name, sep, value = item.partition("=")
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise UsageError(
                f"--env {name}: cannot be the name of a variable",
                "write NAME=VALUE, or NAME for the host's value",
            )
        out[name] = value if sep else None
    return out


def parse_bind(text: str, start: str | None = None) -> str:
    """A bind as a person gives it, with a relative source made absolute from ``start`` (variables allowed).

    Raises:
        UsageError: it cannot be read.
    """
    word = from_user(text)
    source, target, mode = _bind(word)
    if not source.startswith(("/", "$")):
        here = join(from_user(start or str(Path.cwd())), "/", source)
        target = here if target == source else target
        source = here
    return join(source, ":", target, f":{mode}" if mode else "")
