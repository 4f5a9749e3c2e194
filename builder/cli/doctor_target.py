"""``builder doctor TARGET``: whether this host can lock, build, test, run and push one target.

The checks run at the same time, and none is waited for longer than some seconds. They only ask: nothing is
downloaded, made or changed.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from builder.bases.reference import path_and_tag, split_reference
from builder.cli.finding import LOGIN_HINT, Finding, debian_finding, disk_finding, runner_findings
from builder.config.recipe import Recipe
from builder.errors import BuilderError
from builder.lock.channels import channels_hint, describe_silent, probe_channels
from builder.lock.environment import recipe_environment
from builder.lock.indexes import find_indexes
from builder.lock.request import SolveRequest
from builder.net.apt import apt_sources
from builder.net.mirrors import mirrored_base
from builder.oci.reference import Reference
from builder.progress import NullReporter
from builder.project import Project
from builder.publishing.publish import destination_text
from builder.registry.client import RegistryClient
from builder.registry.profile import named_credentials
from builder.run.gpu import gpu_devices
from builder.run.select import SIF_RUNNER_NAMES
from builder.site.edf import require_engine

#: Seconds until a check that has no answer is given up.
_PATIENCE_S = 12.0
#: Bytes that an image needs in the cache while it is built, without and with the libraries of a GPU.
_CPU_IMAGE, _GPU_IMAGE = 3e9, 10e9

_Check = Callable[[Project, Recipe], Sequence[Finding]]


def examine_target(project: Project, recipe: Recipe) -> list[Finding]:
    """Checks what locking, building, testing, running and pushing a target need on this host."""
    checks: dict[str, _Check] = {
        "base": _base,
        "lock": _lock,
        "packages": _packages,
        "disk": _disk,
        "run": _run,
        "push": _push,
    }
    results: dict[str, Sequence[Finding]] = {}

    def work(name: str, check: _Check) -> None:
        try:
            results[name] = check(project, recipe)
        except BuilderError as e:
            results[name] = [Finding(name, "bad", e.message, e.hint)]

    # daemons: a server that never answers does not keep the command from ending
    threads = [threading.Thread(target=work, args=item, daemon=True) for item in checks.items()]
    for thread in threads:
        thread.start()
    end = time.monotonic() + _PATIENCE_S
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    late = f"no answer within {_PATIENCE_S:.0f} s"
    findings: list[Finding] = []
    for name in checks:
        findings += results.get(name, [Finding(name, "bad", late, "check the network")])
    return findings


def _base(project: Project, recipe: Recipe) -> Sequence[Finding]:
    what = f"base: {recipe.base}"
    actual = mirrored_base(project.settings, recipe.base)
    kind, rest = split_reference(actual)
    if kind == "debian":
        return [_debian_base(recipe)]
    if kind == "docker":
        return [_registry_base(what, actual, project)]
    return [_file_base(what, rest, recipe)]


def _debian_base(recipe: Recipe) -> Finding:
    found = debian_finding(recipe.base, "bad")
    if found.status == "ok":
        apt_sources(recipe.base.partition(":")[2])  # raises ImageError if no mirror is known
    return found


def _registry_base(what: str, reference: str, project: Project) -> Finding:
    parsed = Reference.parse(reference)
    with closing(RegistryClient(parsed.host, settings=project.settings)) as client:
        described = client.head_manifest(parsed.repository, parsed.ref)
    if described is None:
        return Finding(what, "bad", f"{parsed.host} has no {parsed}", "correct base: in the recipe")
    return Finding(what, "ok", f"{parsed.host} answers: {described.digest[:19]}")


def _file_base(what: str, rest: str, recipe: Recipe) -> Finding:
    path, _ = path_and_tag(rest, recipe.root)
    if path.exists():
        return Finding(what, "ok", "exists")
    hint = f"correct the path; it is relative to {recipe.root}"
    if Path(rest).is_absolute():
        hint = (
            f"build on {recipe.site_title}, where it is mounted; "
            f"or copy it, and set BUILDER_MIRRORS={path.parent}=FOLDER"
        )
    return Finding(what, "bad", f"{path} does not exist", hint)


def _lock(project: Project, recipe: Recipe) -> Sequence[Finding]:
    path, command = recipe.lock_path, f"builder lock {recipe.name}"
    if not path.exists() and not recipe.uses_lock_unchanged:
        return [Finding("lock", "missing", f"{path.name} does not exist yet", command)]
    reasons = project.stale(recipe)
    if reasons:
        return [Finding("lock", "bad", f"stale: {'; '.join(reasons)}", command)]
    return [Finding("lock", "ok", f"{path.name} is up to date")]


class _Warnings(NullReporter):
    """Keeps the warnings of a check."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def warn(self, message: str) -> None:
        self.messages.append(message)


def _packages(project: Project, recipe: Recipe) -> Sequence[Finding]:
    """Whether conda channels and package indexes answer, or their fallbacks are allowed."""
    environment = recipe_environment(recipe)
    if recipe.lock and not environment.channels:
        return [Finding("packages", "ok", "the lock was made elsewhere")]
    warnings = _Warnings()
    request = SolveRequest(recipe, environment, project.settings, reporter=warnings)
    answering, silent = probe_channels(request)
    if not silent:
        names = ", ".join(channel.name for channel in answering)
        conda = Finding("conda channels", "ok", f"{names}: all answer")
    elif not answering and recipe.conda.fallback == "debian":
        found = f"{describe_silent(silent)}; the Debian channel takes their place"
        conda = Finding("conda channels", "ok", found)
    else:
        conda = Finding("conda channels", "bad", describe_silent(silent), channels_hint(request, silent))
    if not (environment.pip or environment.sources):
        return [conda]
    try:
        find_indexes(request)
    except BuilderError as e:
        return [conda, Finding("package indexes", "bad", e.message, e.hint)]
    return [conda, Finding("package indexes", "ok", "; ".join(warnings.messages) or "all answer")]


def _disk(project: Project, recipe: Recipe) -> Sequence[Finding]:
    needed = _CPU_IMAGE if recipe.gpu.vendor == "none" else _GPU_IMAGE
    folder = project.settings.cache
    while not folder.exists():
        folder = folder.parent
    found = [disk_finding("disk: cache", folder, needed, recipe.name)]
    if project.root.stat().st_dev != folder.stat().st_dev:  # else dist/ has hard links to the cache
        found.append(disk_finding("disk: dist/", project.root, needed / 2, recipe.name))
    return found


def _run(project: Project, recipe: Recipe) -> Sequence[Finding]:
    """GPU, a runner for the smoke test, the site's runtime and its scheduler."""
    return [_gpu(recipe), *_runner(recipe), *_scheduler(recipe)]


def _gpu(recipe: Recipe) -> Finding:
    vendor = recipe.gpu.vendor
    if vendor == "none":
        return Finding("GPU", "ok", "the target needs none")
    devices = gpu_devices(vendor)
    if devices:
        return Finding(f"GPU: {vendor}", "ok", ", ".join(device.name for device in devices))
    hint = f"build here, and test on {recipe.site_title}: builder publish {recipe.name} --no-tags"
    if recipe.site.slurm:
        hint = f"build here; on {recipe.site_title}: builder smoke {recipe.name} --on slurm"
    return Finding(f"GPU: {vendor}", "missing", "none on this host", hint)


def _runner(recipe: Recipe) -> Sequence[Finding]:
    found = {finding.what.removeprefix("run: "): finding for finding in runner_findings()}
    usable = SIF_RUNNER_NAMES if recipe.format == "sif" else tuple(found)
    working = [name for name in usable if found[name].status == "ok"]
    if working:
        smoke = Finding("smoke test", "ok", f"can run with {', '.join(working)}")
    else:
        reasons = [f"{name}: {found[name].found}" for name in usable if found[name].status == "broken"]
        hint = next((found[name].hint for name in usable if found[name].hint), "see builder doctor")
        smoke = Finding("smoke test", "missing", "; ".join(reasons) or "no runner is installed", hint)
    runtime = recipe.site.runtime
    if runtime.kind == "edf":
        return [smoke, _engine(recipe)]
    if runtime.kind in found and found[runtime.kind].status != "missing" and not runtime.program:
        own = found[runtime.kind]
        return [smoke, Finding(f"builder run: {runtime.kind}", own.status, own.found, own.hint)]
    path = shutil.which(runtime.command)
    if path:
        return [smoke, Finding(f"builder run: {runtime.command}", "ok", path)]
    hint = f"run it on {recipe.site_title}; for the command line there: builder run {recipe.name} --print"
    return [smoke, Finding(f"builder run: {runtime.command}", "missing", "not installed", hint)]


def _engine(recipe: Recipe) -> Finding:
    """Whether this machine's srun starts containers."""
    what = "builder run: srun --environment"
    try:
        require_engine(os.environ)
    except BuilderError as e:
        hint = f"run it on {recipe.site_title}; for the command there: builder run {recipe.name} --print"
        return Finding(what, "missing", e.message, hint)
    return Finding(what, "ok", "the Container Engine is installed")


def _scheduler(recipe: Recipe) -> Sequence[Finding]:
    if recipe.site.slurm is None:
        return []
    path = shutil.which("sbatch")
    if path:
        return [Finding("jobs: sbatch", "ok", path)]
    hint = f"submit on {recipe.site_title}: builder job {recipe.name} writes the script"
    return [Finding("jobs: sbatch", "missing", "not installed", hint)]


def _push(project: Project, recipe: Recipe) -> Sequence[Finding]:
    if not recipe.registry.host:
        hint = f"set registry.host, or: builder publish {recipe.name} --to HOST/REPOSITORY"
        return [Finding("push", "missing", "the recipe names no registry", hint)]
    where = destination_text(recipe, None, None)
    host, _, repository = where.partition("/")
    with closing(RegistryClient(host, named_credentials(), settings=project.settings)) as client:
        try:
            credentials = client.credentials(repository)
            client.ping()
        except BuilderError as e:
            return [Finding(f"push: {where}", "missing", e.message, e.hint)]
    if not credentials:
        found = f"{host} answers, but there are no credentials"
        return [Finding(f"push: {where}", "missing", found, LOGIN_HINT)]
    return [Finding(f"push: {where}", "ok", f"{host} answers; credentials: {credentials.source}")]
