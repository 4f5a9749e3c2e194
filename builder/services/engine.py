"""The container program and its compose: start, stop and list the containers of a stack."""

from __future__ import annotations

import shutil
import socket

from builder.errors import RunnerError, UsageError
from builder.run.process import Completed, execute, tail
from builder.services.state import Stack, State

_TIMEOUT_S = 600
_LABEL = "com.docker.compose.project"


class Engine:
    """Docker or podman with a compose program.

    Args:
        program: the container program.

    Raises:
        RunnerError: it is not installed, or it does not answer.
    """

    def __init__(self, program: str) -> None:
        self.program = program
        if shutil.which(program) is None:
            raise RunnerError(
                f"{program} is not installed",
                "install it (docs.docker.com/engine/install), or name another: --engine podman",
            )

    def compose(self) -> list[str]:
        """The words of the compose program: the plugin, or the older program of its own.

        Raises:
            RunnerError: there is none.
        """
        if execute([self.program, "compose", "version"], timeout_s=60).returncode == 0:
            return [self.program, "compose"]
        older = "podman-compose" if "podman" in self.program else "docker-compose"
        if shutil.which(older):
            return [older]
        raise RunnerError(
            f"{self.program} compose is not installed", "install the package docker-compose-plugin"
        )

    def call(self, *words: str, check: bool = True, timeout_s: float = _TIMEOUT_S) -> Completed:
        """Runs the container program.

        Raises:
            RunnerError: it failed; the message has the end of its output.
        """
        done = execute([self.program, *words], timeout_s=timeout_s)
        if check and done.returncode:
            raise _failure(f"{self.program} {words[0]}", done)
        return done

    def image_id(self, image: str) -> str:
        """The id of an image in the engine; empty if it has none of this name.

        Raises:
            RunnerError: the engine does not answer.
        """
        found = self.call("image", "inspect", "--format", "{{.Id}}", image, check=False)
        if found.returncode == 0:
            return found.stdout.strip()
        answers = self.call("version", check=False)
        if answers.returncode:
            raise RunnerError(
                f"{self.program} does not answer:\n{tail(answers.stderr.splitlines(), 3)}",
                "start its daemon, and let your user use it: sudo usermod -aG docker $USER",
            )
        return ""

    def up(self, stack: Stack, state: State) -> None:
        """Creates and starts the containers that differ from the compose file.

        Raises:
            RunnerError: one does not start.
        """
        self._compose(stack, state, "up", "--detach", "--remove-orphans")

    def down(self, stack: Stack, state: State, *, remove_data: bool) -> None:
        """Removes the containers and their network, and the volumes too if the data has to go.

        Raises:
            RunnerError: compose failed.
        """
        self._compose(stack, state, "down", "--remove-orphans", *(["--volumes"] if remove_data else []))

    def _compose(self, stack: Stack, state: State, *words: str) -> None:
        name = ["--project-name", stack.project, "--file", str(state.compose_file)]
        done = execute([*self.compose(), *name, *words], timeout_s=1800)
        if done.returncode:
            raise _failure(f"compose {words[0]}", done)

    def states(self, stack: Stack) -> dict[str, tuple[str, str]]:
        """State (``running``) and status (``Up 3 minutes (healthy)``) of each container, by its service.

        Raises:
            RunnerError: the engine does not answer.
        """
        form = "{{.Names}}\t{{.State}}\t{{.Status}}"
        done = self.call("ps", "--all", "--filter", f"label={_LABEL}={stack.project}", "--format", form)
        found = {}
        for line in done.stdout.splitlines():
            name, state, status = [*line.split("\t"), "", ""][:3]
            found[name.removeprefix(f"{stack.project}-")] = (state, status)
        return found

    def log_tail(self, stack: Stack, service: str, count: int = 12) -> str:
        """The last lines of a service's log."""
        done = self.call("logs", f"--tail={count}", stack.container(service), check=False)
        return tail([*done.stdout.splitlines(), *done.stderr.splitlines()], count)


def _failure(what: str, done: Completed) -> RunnerError:
    lines = (done.stderr or done.stdout).splitlines()
    return RunnerError(f"{what} failed:\n{tail(lines, 8)}", "correct what it says, and start again")


def is_taken(port: int) -> bool:
    """Whether a program of this machine listens at a port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def check_ports(stack: Stack, running: Stack | None) -> None:
    """Checks the ports that the stack does not already listen at itself.

    Args:
        stack: what will be started.
        running: the stack of the containers that are there now.

    Raises:
        UsageError: another program has a port, or two services have the same.
    """
    own = set(running.ports.values()) if running else set()
    seen: dict[int, str] = {}
    for service, port in stack.ports.items():
        if service == "s3" and stack.s3 is not None:
            continue
        free = f"--port {service}={port + 1}"
        if port in seen:
            raise UsageError(f"port {port} is given to {seen[port]} and {service}", free)
        seen[port] = service
        if port not in own and is_taken(port):
            raise UsageError(
                f"port {port}, which {service} needs, is used by another program",
                f"give {service} another one: {free}",
            )
