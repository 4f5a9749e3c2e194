"""The relay: the part of a unit other than unit 0, between its rank and the launcher."""

from __future__ import annotations

import argparse
import selectors
import socket
import time

from ..core import Item, one_line
from ..machine.facts import host_name
from ..schema import EXIT_CODES
from .child import Link, complain, describe_death, end_process, start_rank
from .positions import Launch

#: After the launcher's own time limit.
_LATER_THAN_LAUNCHER_S = 30


def relay(options: argparse.Namespace, launch: Launch, folder: str) -> int:
    """Start this unit's rank, and pass its events to the launcher and the launcher's orders to it.

    Returns:
        The exit code of this process, on all units the same: that of an error if the launcher sent
            none.
    """
    longest_s = options.timeout + 2 * options.start_stall + _LATER_THAN_LAUNCHER_S
    deadline = time.monotonic() + longest_s
    connection = _connect(options, launch)
    if connection is None:
        return EXIT_CODES["error"]
    # After the connection: a rank without a launcher would work for nothing.
    pid, own = start_rank(options, launch.place(0, folder), folder)
    launcher, rank = Link(connection), Link(own)
    launcher.send({"hello": launch.unit, "host": host_name()})
    try:
        return _pass_on(launcher, rank, pid, deadline)
    finally:
        end_process(pid)
        connection.close()


def _connect(options: argparse.Namespace, launch: Launch) -> socket.socket | None:
    """Connect to the launcher; None: it cannot be reached.

    Waits longer than the launcher waits for this unit. If one task of a job fails, srun and
    torchrun may end all others, and the launcher needs the time to write its report.
    """
    address = (launch.address, launch.port)
    patience = time.monotonic() + 2 * options.start_stall
    while True:
        try:
            connection = socket.create_connection(address, timeout=5)
        except OSError as e:
            if time.monotonic() > patience:
                where = f"{address[0]}, port {address[1]}"
                complain(f"rank {launch.unit} cannot reach rank 0 at {where}: {one_line(e)}")
                return None
            time.sleep(0.2)
        else:
            connection.settimeout(None)
            return connection


def _pass_on(launcher: Link, rank: Link, pid: int, deadline: float) -> int:
    """Pass messages on until the launcher sends the verdict; return the exit code."""
    selector = selectors.DefaultSelector()
    selector.register(launcher.connection, selectors.EVENT_READ, launcher)
    selector.register(rank.connection, selectors.EVENT_READ, rank)
    while time.monotonic() < deadline:
        for key, _ in selector.select(0.5):
            messages = key.data.receive()
            if key.data is launcher:
                code = _apply(messages, rank, pid)
                if code is not None:
                    return code
                continue
            if messages is None:
                # Only this process can tell how its child has ended.
                selector.unregister(rank.connection)
            for event in [{"gone": describe_death(pid)}] if messages is None else messages:
                launcher.send(event)
    return EXIT_CODES["error"]


def _apply(orders: list[Item] | None, rank: Link, pid: int) -> int | None:
    """Apply the orders of the launcher; return the exit code once it is known."""
    if orders is None:
        complain("the connection to rank 0 has ended")
        return EXIT_CODES["error"]
    for order in orders:
        if "verdict" in order:
            return EXIT_CODES.get(order["verdict"], EXIT_CODES["error"])
        if "stop" in order:
            end_process(pid)
        else:
            rank.send(order)
    return None
