"""A headless Chromium, controlled over its DevTools pipe: how a page is rendered, and what it loads.

This is a small client of the protocol, because a driver such as Playwright downloads its own browser. The
tests use the distribution's browser.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.parts import part_missing

_PATIENCE_S = 180.0


class Chromium:
    """A running browser with one page."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read, self._buffer = write, read, b""
        self._numbers = itertools.count(1)
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self.page(f"{domain}.enable")
        self.page("Page.setLifecycleEventsEnabled", enabled=True)

    def call(self, method: str, session: str = "", **params: Any) -> Any:
        """Calls a method of the protocol and returns its result."""
        number = next(self._numbers)
        message = {
            "id": number,
            "method": method,
            "params": params,
            **({"sessionId": session} if session else {}),
        }
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            got = self._receive()
            if got.get("id") == number:
                if "error" in got:
                    raise AssertionError(f"{method}: {got['error']['message']}")
                return got["result"]
            self.events.append(got)

    def _receive(self) -> dict[str, Any]:
        end = time.monotonic() + _PATIENCE_S
        while b"\0" not in self._buffer:
            if not select.select([self._read], [], [], max(0.0, end - time.monotonic()))[0]:
                raise AssertionError(f"Chromium has not answered for {_PATIENCE_S:.0f} s")
            data = os.read(self._read, 1 << 20)
            if not data:
                raise AssertionError("Chromium has exited")
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(message))

    def page(self, method: str, **params: Any) -> Any:
        return self.call(method, self._session, **params)

    def show(self, path: Path, *, width: int = 1200, height: int = 900, dark: bool = False) -> None:
        """Opens a file and waits until it is loaded."""
        self.events.clear()
        self.page(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 700,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.page("Emulation.setEmulatedMedia", features=[scheme])
        # A slow browser reports the end of the previous page, about:blank, only now.
        loader = self.page("Page.navigate", url=path.as_uri())["loaderId"]
        end = time.monotonic() + _PATIENCE_S
        while not any(_is_loaded(event, loader) for event in self.events):
            assert time.monotonic() < end, "the page does not load"
            self.events.append(self._receive())

    def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        got = self.page("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in got, got
        return got["result"].get("value")

    def screenshot(self, path: Path, *, whole: bool = True) -> bytes:
        """Writes a picture of the whole page (or of what the window shows) as PNG, and returns it."""
        data = base64.b64decode(
            self.page("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        )
        path.write_bytes(data)
        return data

    @property
    def fetched(self) -> list[str]:
        """The addresses that the page has requested."""
        sent = (
            e["params"]["request"]["url"]
            for e in self.events
            if e.get("method") == "Network.requestWillBeSent"
        )
        return list(sent)

    @property
    def messages(self) -> list[str]:
        """The messages of the browser's console."""
        return [e["params"]["entry"]["text"] for e in self.events if e.get("method") == "Log.entryAdded"]


def _is_loaded(event: dict[str, Any], loader: str) -> bool:
    """Whether an event is the load event of the page that a loader has loaded."""
    if event.get("method") != "Page.lifecycleEvent":
        return False
    params = event["params"]
    return bool(params["loaderId"] == loader and params["name"] == "load")


@contextlib.contextmanager
def chromium() -> Iterator[Chromium]:
    """Starts Debian's chromium (without its sandbox as root), and stops all of its processes at the end."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        part_missing("no chromium (Debian's package chromium)")
    with tempfile.TemporaryDirectory(prefix="bt-chromium-", ignore_cleanup_errors=True) as profile:
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
        options = [
            "--headless=new",
            "--disable-gpu",
            "--hide-scrollbars",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-extensions",
            f"--user-data-dir={profile}",
            "--remote-debugging-pipe",
        ]
        if os.geteuid() == 0:
            options.append("--no-sandbox")

        def descriptors() -> None:
            """The browser reads from descriptor 3 and writes to 4."""
            copies = os.dup(theirs_in), os.dup(theirs_out)
            os.dup2(copies[0], 3)
            os.dup2(copies[1], 4)

        process = subprocess.Popen(
            [program, *options, "about:blank"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            close_fds=False,
            preexec_fn=descriptors,
            env={**os.environ, "HOME": profile},
        )
        os.close(theirs_in)
        os.close(theirs_out)
        try:
            yield Chromium(ours_out, ours_in)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            os.close(ours_out)
            os.close(ours_in)
