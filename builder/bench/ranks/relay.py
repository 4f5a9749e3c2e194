"""The relay: what a unit other than unit 0 does."""

from __future__ import annotations

import argparse
import os
import selectors
import socket
import time
from functools import partial

from ..core import Item, one_line
from ..machine.facts import host_name
from ..schema import EXIT_CODES
from .child import Process, describe_death, end_process, start_rank
from .messages import Lines, complain, encode, write_all
from .plan import Launch

#: After the launcher's own time limit.
_LATER_THAN_LAUNCHER_S = 30
_CHUNK = 1 << 16


class Relay:
    """Starts ranks, and passes their events to the launcher and its orders to them."""

    def __init__(self, options: argparse.Namespace, launch: Launch, folder: str) -> None:
        """``folder`` is for temporary files."""
        self.options = options
        self.launch = launch
        self.folder = folder
        self.selector = selectors.DefaultSelector()
        #: This unit's ranks, by number.
        self.processes: dict[int, Process] = {}
        #: The exit code of this process, once it is known.
        self.code: int | None = None

    def run(self) -> int:
        """Returns the exit code of the whole run, on all units the same."""
        deadline = time.monotonic() + self.options.timeout + _LATER_THAN_LAUNCHER_S
        connection = self._connect()
        if connection is None:
            return EXIT_CODES["error"]
        try:
            for number in range(self.launch.ranks):
                self._start(number, connection)
            apply = partial(self._read_launcher, connection, Lines())
            self.selector.register(connection, selectors.EVENT_READ, apply)
            while self.code is None and time.monotonic() < deadline:
                for key, _ in self.selector.select(0.5):
                    key.data()
        finally:
            for process in self.processes.values():
                end_process(process.pid)
            connection.close()
        return EXIT_CODES["error"] if self.code is None else self.code

    def _connect(self) -> socket.socket | None:
        """The connection to the launcher; None if it cannot be reached.

        Waits longer than the launcher waits for this unit. If one task of a job fails, srun and torchrun may
        end all others, and the launcher needs the time to write its report.
        """
        address = (self.launch.address, self.launch.port)
        patience = time.monotonic() + min(2 * self.options.stall, self.options.timeout)
        while True:
            try:
                connection = socket.create_connection(address, timeout=5)
            except OSError as e:
                if time.monotonic() > patience:
                    where = f"{address[0]}, port {address[1]}"
                    complain(f"rank {self.launch.unit} cannot reach rank 0 at {where}: {one_line(e)}")
                    return None
                time.sleep(0.2)
            else:
                connection.settimeout(None)
                return connection

    def _start(self, number: int, connection: socket.socket) -> None:
        place = self.launch.place(number, self.folder)
        _send(connection, {"rank": place.rank, "hello": host_name()})
        process = start_rank(self.options, place, self.folder)
        self.processes[place.rank] = process
        read = _RankReader(self.selector, connection, place.rank, process)
        self.selector.register(process.events, selectors.EVENT_READ, read)

    def _read_launcher(self, connection: socket.socket, lines: Lines) -> None:
        """Applies the orders of the launcher."""
        try:
            data = connection.recv(_CHUNK)
        except OSError:
            data = b""
        for order in lines.feed(data):
            self._apply(order)
        if not data and self.code is None:
            complain("the connection to rank 0 has ended")
            self.code = EXIT_CODES["error"]

    def _apply(self, order: Item) -> None:
        if "verdict" in order:
            self.code = EXIT_CODES.get(order["verdict"], EXIT_CODES["error"])
        elif "stop" in order:
            end_process(self.processes[order["rank"]].pid)
        else:
            try:
                write_all(self.processes[order["rank"]].orders, encode(order))
            except OSError:
                pass  # the rank has ended, which its other pipe reports


class _RankReader:
    """Passes the events of one rank to the launcher."""

    def __init__(
        self, selector: selectors.BaseSelector, connection: socket.socket, rank: int, process: Process
    ) -> None:
        self.selector = selector
        self.connection = connection
        self.rank = rank
        self.process = process
        self.lines = Lines()
        #: What the rank does, for the message about its end.
        self.step = "start"
        #: Whether its last event has come.
        self.ended = False

    def __call__(self) -> None:
        data = os.read(self.process.events, _CHUNK)
        for event in self.lines.feed(data):
            self.step = str(event.get("begin", self.step))
            self.ended = "end" in event
            _send(self.connection, {**event, "rank": self.rank})
        if not data:
            self.selector.unregister(self.process.events)
            if not self.ended:
                _send(
                    self.connection, {"rank": self.rank, "gone": describe_death(self.process.pid, self.step)}
                )


def _send(connection: socket.socket, message: Item) -> None:
    """Sends to the launcher. If it has ended, reading from the connection reports that, too."""
    try:
        connection.sendall(encode(message))
    except OSError:
        pass
