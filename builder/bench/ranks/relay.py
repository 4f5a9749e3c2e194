"""The relay: what a unit other than unit 0 does."""

from __future__ import annotations

import argparse
import selectors
import socket
import time
from functools import partial

from ..core import Item, one_line
from ..machine.facts import host_name
from ..schema import EXIT_CODES
from .child import Lines, Process, complain, encode
from .plan import Launch
from .unit import CHUNK, Unit

#: After the launcher's own time limit.
_LATER_THAN_LAUNCHER_S = 30


class Relay(Unit):
    """Starts ranks, and passes their events to the launcher and its orders to them."""

    def __init__(self, options: argparse.Namespace, launch: Launch, folder: str) -> None:
        """``folder`` is for temporary files."""
        super().__init__(options, launch, folder)
        self.connection = socket.socket()
        #: The exit code of this process, on all units the same; None until it is known.
        self.code: int | None = None

    @property
    def exit_code(self) -> int:
        """The exit code of this process: that of an error if the launcher sent none."""
        return EXIT_CODES["error"] if self.code is None else self.code

    def run(self) -> None:
        """Return when the launcher has sent the verdict, or is not reachable. Kill all ranks here."""
        options = self.options
        longest_s = options.timeout + 2 * options.start_stall + _LATER_THAN_LAUNCHER_S
        deadline = time.monotonic() + longest_s
        if not self._connect():
            return
        try:
            self.start_ranks()
            read = partial(self._read_launcher, Lines())
            self.selector.register(self.connection, selectors.EVENT_READ, read)
            while self.code is None and time.monotonic() < deadline:
                self.handle(0.5)
        finally:
            self.kill_all()
            self.connection.close()

    def _connect(self) -> bool:
        """Connect to the launcher. Returns whether it can be reached.

        Waits longer than the launcher waits for this unit. If one task of a job fails, srun and torchrun may
        end all others, and the launcher needs the time to write its report.
        """
        address = (self.launch.address, self.launch.port)
        patience = time.monotonic() + 2 * self.options.start_stall
        while True:
            try:
                self.connection = socket.create_connection(address, timeout=5)
            except OSError as e:
                if time.monotonic() > patience:
                    where = f"{address[0]}, port {address[1]}"
                    complain(f"rank {self.launch.unit} cannot reach rank 0 at {where}: {one_line(e)}")
                    return False
                time.sleep(0.2)
            else:
                self.connection.settimeout(None)
                return True

    def started(self, number: int, process: Process) -> None:
        """Tell the launcher where a rank runs."""
        self._send({"rank": number, "hello": host_name()})

    def receive(self, number: int, event: Item) -> None:
        """Pass an event on to the launcher."""
        self._send({**event, "rank": number})

    def lost(self, number: int, seen: str, advice: str) -> None:
        """Tell the launcher how a rank ended."""
        self._send({"rank": number, "gone": [seen, advice]})

    def _send(self, message: Item) -> None:
        """Send to the launcher. If it has ended, reading from the connection reports that, too."""
        try:
            self.connection.sendall(encode(message))
        except OSError:
            pass

    def _read_launcher(self, lines: Lines) -> None:
        """Apply the orders of the launcher."""
        try:
            data = self.connection.recv(CHUNK)
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
            self.kill(order["rank"])
        else:
            self.order(order["rank"], order)
