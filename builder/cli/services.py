"""``builder services``: MLflow, Ray and Prometheus that stay up, and jobs for them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from builder.cli.context import (
    Context,
    common_options,
    context_exit,
    pass_context,
    target_argument,
)
from builder.errors import ConfigError, RunnerError, UsageError
from builder.progress import working

if TYPE_CHECKING:
    from builder.config.recipe import Recipe
    from builder.project import Project
    from builder.services.engine import Engine
    from builder.services.health import Health
    from builder.services.state import Stack, State

_FOLDER = click.Path(file_okay=False, path_type=Path)


@click.group()
def services() -> None:
    """Run the servers of a training machine: MLflow, a Ray cluster, Prometheus.

    They stay up and take jobs of several users. MLflow keeps its data in PostgreSQL and its artifacts in an
    S3 store. All of them listen on this machine only: reach them by ssh -L.
    """


def _stack_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options that name the servers."""
    name = click.option(
        "--name", default="services", show_default=True, help="The servers, where you run several."
    )
    state = click.option(
        "--state",
        type=_FOLDER,
        envvar="BUILDER_SERVICES",
        help="Their folder. Default: builder/services/NAME in $XDG_STATE_HOME. [env: BUILDER_SERVICES]",
    )
    return name(state(command))


@services.command("up")
@target_argument
@_stack_options
@click.option("--engine", default="", help="docker or podman. Default: that of TARGET's site.")
@click.option("--image", default="", help="Image of the Ray cluster. Default: TARGET's.")
@click.option("--servers-image", default="", help="Image of the other servers. Default: builder makes it.")
@click.option("--workers", type=click.IntRange(min=1), help="Ray workers. Default: one per GPU.")
@click.option("--gpus", type=click.IntRange(min=0), help="GPUs for the workers. Default: all of the site.")
@click.option(
    "--port",
    "ports",
    multiple=True,
    metavar="SERVICE=PORT",
    help="Ports of mlflow, ray, prometheus, s3.",
)
@click.option(
    "--bind",
    "binds",
    multiple=True,
    metavar="SOURCE:TARGET[:ro]",
    help="A folder of this machine, or a named volume, for all jobs.",
)
@click.option("--scrape", multiple=True, metavar="HOST:PORT", help="An exporter for Prometheus.")
@click.option("--host", "hosts", multiple=True, help="A name by which people reach MLflow in a browser.")
@click.option("--s3", default="", metavar="URL", help="Use this S3 store instead of one of its own.")
@click.option("--s3-keys", default="", metavar="FILE", help="Its keys, in AWS's format (mode 0600).")
@click.option("--s3-bucket", default="builder", show_default=True, help="Its bucket, which exists.")
@click.option("--s3-region", default="us-east-1", show_default=True, help="Its region.")
@click.option("--print", "only_print", is_flag=True, help="Print the compose file and start nothing.")
@click.option("--output", type=_FOLDER, help="Write the compose file and its files here, and start nothing.")
@click.option("--timeout", default=600, show_default=True, help="Seconds until all have to answer.")
@common_options
@pass_context
def up(
    context: Context,
    /,
    target: str | None,
    name: str,
    state: Path | None,
    only_print: bool,
    output: Path | None,
    timeout: int,
    **values: Any,
) -> None:
    """Start the servers, or update them; TARGET's image is that of the Ray cluster.

    What is already there stays as it is. What is left out, TARGET too, is as the last time.

    \b
        builder services up chameleon-a100 --bind food11:/mnt
        builder services up chameleon-a100 --port mlflow=5000 --s3 https://HOST:7480 --s3-keys ~/.aws/chi
    """
    from builder.services.compose import compose_file
    from builder.services.engine import Engine, check_ports
    from builder.services.plan import UpOptions, planned
    from builder.services.state import State

    options = UpOptions(**values)
    place = State.of(name, output or state)
    before = place.read()
    if before is not None:
        place.require_own(before)
    if target is None and before is not None and before.target in context.project.targets:
        target = before.target
    recipe = context.one_recipe(target)
    stack = planned(recipe, options, name, before)
    text = compose_file(stack, recipe, place)
    if only_print:
        context.output.result({"compose": text})
        if not context.output.as_json:
            sys.stdout.write(text)
        return
    if output is not None:
        place.write(stack, text)
        context.output.result({"folder": str(output)}, f"{output}/compose.yaml, with its files and secrets")
        return
    engine = Engine(stack.engine)
    engine.compose()
    check_ports(stack, before if before and engine.states(before) else None)
    _ensure_images(context, engine, recipe, stack, place, own_servers=not options.servers_image)
    stack = replace(
        stack, image_id=engine.image_id(stack.image), servers_id=engine.image_id(stack.servers_image)
    )
    _start(context, engine, stack, place, compose_file(stack, recipe, place), timeout)


def _ensure_images(
    context: Context, engine: Engine, recipe: Recipe, stack: Stack, state: State, *, own_servers: bool
) -> None:
    """Loads the images that the engine does not have: pulls those with a registry, builds the others.

    Raises:
        RunnerError: an image cannot be had.
    """
    from builder.services.plan import SERVERS, image_name

    if not engine.image_id(stack.image):
        if stack.image != image_name(recipe):
            raise RunnerError(
                f"{engine.program} has no image {stack.image}", f"{engine.program} pull {stack.image}"
            )
        if recipe.registry.host and recipe.registry.repository:
            with working(context.output, f"pulling {stack.image}"):
                engine.call("pull", stack.image, timeout_s=3600)
        else:
            _build(context, engine, context.project, recipe, stack.image)
    if not engine.image_id(stack.servers_image):
        if not own_servers:
            raise RunnerError(
                f"{engine.program} has no image {stack.servers_image}",
                f"{engine.program} pull {stack.servers_image}",
            )
        project = _servers_project(context, state)
        _build(context, engine, project, project.recipe(SERVERS), stack.servers_image)


def _servers_project(context: Context, state: State) -> Project:
    """The project with the target of the servers: the user's own, or the one of this package."""
    from builder.project import Project
    from builder.services.plan import SERVERS
    from builder.services.state import package_file
    from builder.store.blobs import Store
    from builder.store.files import write_atomic

    if SERVERS in context.project.targets:
        return context.project
    root = state.image_folder
    for path in (Path("recipes/services.yaml"), Path("environments/services.yml")):
        write_atomic(root / path, (package_file(path.name) or "").encode())
    return Project(root, context.settings, Store(context.settings.cache), context.output)


def _build(context: Context, engine: Engine, project: Project, recipe: Recipe, name: str) -> None:
    from builder.image.archive import docker_load
    from builder.model import Image

    if engine.program != "docker":
        file = f"{recipe.name}.tar"
        raise RunnerError(
            f"{engine.program} has no image {name}",
            f"builder build {recipe.name} --docker-archive {file} && {engine.program} load --input {file}",
        )
    context.output.note(f"{engine.program} has no image {name}: building {recipe.name}")
    artifact = project.build(recipe).artifact
    if not isinstance(artifact, Image):
        raise ConfigError(
            f"{recipe.name} makes a SIF, and the servers need an image", "choose another target"
        )
    with working(context.output, f"loading {recipe.name} into docker"):
        docker_load(artifact, name)


def _start(
    context: Context, engine: Engine, stack: Stack, state: State, compose: str, patience_s: float
) -> None:
    from builder.services.compose import named_volumes
    from builder.services.health import addresses, wait_until_healthy

    state.write(stack, compose)
    for volume in named_volumes(stack.binds):
        engine.call("volume", "create", volume)
    with working(context.output, "starting the servers"):
        engine.up(stack, state)
    with working(context.output, "waiting for the servers"):
        found = wait_until_healthy(
            stack,
            state,
            engine,
            patience_s,
            lambda what: context.output.doing("waiting for the servers", what),
        )
    _show(context, stack, state, found)
    ports = " ".join(f"-L {port}:127.0.0.1:{port}" for port in _published(stack, addresses(stack)))
    context.output.note(f"from elsewhere: ssh {ports} HOST")
    context.output.note(f"a job: builder services submit{_name_option(stack)} -- python train.py")
    if (state.folder / "dashboard.json").exists():
        context.output.note(f"dashboard for Grafana: {state.folder / 'dashboard.json'}")


def _published(stack: Stack, addresses: Mapping[str, str]) -> list[str]:
    return [url.rpartition(":")[2] for name, url in addresses.items() if name != "s3"]


def _name_option(stack: Stack) -> str:
    return "" if stack.name == "services" else f" --name {stack.name}"


def _show(context: Context, stack: Stack, state: State, found: list[Health]) -> None:
    from rich.markup import escape
    from rich.table import Table

    from builder.services.health import cluster

    table = Table("service", "health", "address", "version", "container", box=None)
    for each in found:
        color = "green" if each.health == "healthy" else "yellow"
        health = f"[{color}]{each.health}[/{color}]"
        table.add_row(each.service, health, escape(each.address), escape(each.version), escape(each.detail))
    context.output.table(table)
    # The token is only for the cluster: without it another user's program could have the port.
    answers = any(each.service == "ray-head" and each.health == "healthy" for each in found)
    ray = cluster(stack, state) if answers else None
    for user, jobs in (ray.jobs if ray else {}).items():
        counts = ", ".join(f"{count} {word.lower()}" for word, count in sorted(jobs.items()))
        context.output.text(escape(f"jobs of {user}: {counts}"))
    answer = {
        "name": stack.name,
        "target": stack.target,
        "folder": str(state.folder),
        "services": [asdict(each) for each in found],
        "workers": ray.workers if ray else None,
        "jobs": {user: dict(jobs) for user, jobs in ray.jobs.items()} if ray else {},
    }
    context.output.result(answer)


@services.command("status")
@_stack_options
@common_options
@pass_context
def status(context: Context, name: str, state: Path | None) -> None:
    """Show the health, address and version of each server, and the jobs by user.

    The exit code is 1 if a server does not answer.
    """
    from builder.services.engine import Engine
    from builder.services.health import check
    from builder.services.state import State

    place = State.of(name, state)
    stack = place.require()
    found = check(stack, place, Engine(stack.engine))
    _show(context, stack, place, found)
    if any(each.health != "healthy" for each in found):
        context_exit(1)


@services.command("down")
@_stack_options
@click.option("--remove-data", is_flag=True, help="Remove runs, artifacts, metrics and passwords too.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@common_options
@pass_context
def down(context: Context, name: str, state: Path | None, remove_data: bool, yes: bool) -> None:
    """Stop the servers and end their jobs. Runs, artifacts and metrics stay, for the next up."""
    from builder.services.engine import Engine
    from builder.services.state import State

    place = State.of(name, state)
    stack = place.require()
    place.require_own(stack)
    if remove_data and not yes:
        what = "PostgreSQL and Prometheus" if stack.s3 else "PostgreSQL, the S3 store and Prometheus"
        click.confirm(f"Remove the data of {what} of {stack.project}?", abort=True, err=True)
    engine = Engine(stack.engine)
    with working(context.output, "stopping the servers"):
        engine.down(stack, place, remove_data=remove_data)
    if remove_data:
        place.remove()
    kept = "" if remove_data else "; the data is kept: builder services down --remove-data removes it"
    context.output.result({"name": stack.name, "removed_data": remove_data}, f"stopped{kept}")


@services.command("submit")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[TARGET] -- COMMAND...")
@_stack_options
@click.option("--run", default="", metavar="RUN", help="Name of the run; the same name again resumes it.")
@click.option(
    "--folder",
    type=_FOLDER,
    default=".",
    help="The job gets a copy of this folder, without what .builderignore and .gitignore name. Default: the"
    " current one.",
)
@click.option(
    "--gpus",
    type=click.FloatRange(min=0),
    default=0.0,
    help="GPUs of a worker for COMMAND itself; 0.5 shares one. Default: none, for programs with Ray Train.",
)
@click.option(
    "--cpus", type=click.FloatRange(min=0), default=0.0, help="CPUs of a worker for COMMAND itself."
)
@click.option("--env", multiple=True, metavar="NAME[=VALUE]", help="A variable of the job.")
@click.option("--no-wait", is_flag=True, help="Return at once.")
@common_options
@pass_context
def submit(
    context: Context,
    /,
    words: tuple[str, ...],
    name: str,
    state: Path | None,
    no_wait: bool,
    env: tuple[str, ...],
    **values: Any,
) -> None:
    """Submit COMMAND to the standing Ray cluster, and show its output; Ctrl-C leaves the job running.

    COMMAND starts on the head, which has no GPU: a program with Ray Train gets its workers there. With --gpus
    or --cpus it starts on a worker. In the job MLFLOW_TRACKING_URI and BUILDER_CHECKPOINT_DIR are set.

    \b
        builder services submit -- python train.py --epochs 5
        builder services submit --gpus 1 --run lr-0.1 -- python train.py --lr 0.1
    """
    from builder.services.engine import Engine
    from builder.services.health import check
    from builder.services.state import State
    from builder.services.submit import Submission
    from builder.services.submit import submit as submit_job
    from builder.site.arguments import parse_env

    place = State.of(name, state)
    stack = place.require()
    if words and words[0] == stack.target:
        words = words[1:]
    elif words and _is_target(context, words[0]):
        raise UsageError(
            f"the cluster runs {stack.target}, not {words[0]}",
            f"builder services up {words[0]} starts it with that image",
        )
    variables = {key: _own(key) if value is None else value for key, value in parse_env(env).items()}
    submission = Submission(
        command=words, env=variables, wait=not no_wait, capture=context.output.as_json, **values
    )
    engine = Engine(stack.engine)
    head = next(each for each in check(stack, place, engine) if each.service == "ray-head")
    if head.health != "healthy":
        raise RunnerError(
            f"the Ray cluster does not answer: {head.health}",
            f"builder services up {stack.target}{_name_option(stack)}",
        )
    done = submit_job(submission, stack, place, engine, context.output.note)
    context.output.result(asdict(done))
    if done.code:
        context_exit(done.code)


def _own(name: str) -> str:
    """The value of a variable here.

    Raises:
        UsageError: it is not set.
    """
    if name not in os.environ:
        raise UsageError(f"--env {name}: the variable is not set here", f"--env {name}=VALUE")
    return os.environ[name]


def _is_target(context: Context, word: str) -> bool:
    try:
        return word in context.project.targets
    except ConfigError:  # outside of a project
        return False
