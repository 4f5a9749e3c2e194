"""A proxy between a client and a real registry, on which a script of faults runs.

The client knows only the proxy's address. The Host header is passed on, so that the addresses in the
registry's answers lead back to the proxy. Each request uses the first :class:`Fault` that matches it, and has
a connection of its own to the registry. Everything is counted: what the client sent, what it received, and
which fault met which request.

A fault acts at one place of a message's body: ``at`` of its length. Up to there all bytes pass unchanged.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from tests.support.httpwire import (
    MOST_HEAD,
    Address,
    Head,
    body,
    connect,
    framed,
    nothing,
    read_head,
    reply,
    reset,
)


@dataclass
class Fault:
    """Which requests are met, and what happens to them."""

    name: str
    method: str = ".*"
    path: str = ".*"
    least: int = 0
    """Only requests with a body of at least so many bytes."""
    skip: int = 0
    """So many matching requests pass before the first that is met."""
    times: int = 1
    at: float = 0.5
    """Where in the body: 0 is its start, 1 its end."""
    answer: tuple[int, Mapping[str, str]] | None = None
    """A status and headers that the client gets; the registry sees nothing."""
    cut_request: bool = False
    """Both connections end when the registry has that much of the request's body."""
    cut_response: bool = False
    lose_answer: bool = False
    """The registry does what was asked, and the client never hears of it."""
    flip_request: bool = False
    """One bit of the body arrives changed."""
    flip_response: bool = False
    shorten: bool = False
    """The answer is shorter, and its Content-Length agrees."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Replace those of the answer."""
    without_login: bool = False
    """The request arrives without its Authorization header."""
    expire_tokens: bool = False
    """Every token that was used so far is refused from now on, by the registry itself."""
    pause_s: float = 0.0
    then: Callable[[], None] | None = None
    """Called at that place of the request's body, or before a request that has none; the proxy waits until it
    returns."""

    def meets(self, request: Head, length: int) -> bool:
        """Whether this request is met; counts it."""
        if not re.fullmatch(self.method, request.words[0]) or not re.search(self.path, request.words[1]):
            return False
        if length < self.least or not self.times:
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.times -= 1
        return True


@dataclass
class Exchange:
    """A request that the proxy has seen; bytes are those of bodies."""

    method: str
    path: str
    fault: str
    sent: int = 0
    received: int = 0
    status: int = 0


class Cut(Exception):
    """Ends the client's connection."""


class FaultProxy:
    """Use as a context manager. ``route`` returns the registry's address for a request path."""

    def __init__(self, route: Callable[[str], Address]) -> None:
        self.route = route
        self.faults: list[Fault] = []
        self.exchanges: list[Exchange] = []
        self._tokens: set[str] = set()
        self._expired: set[str] = set()
        self._under_way = 0
        self._pool = ThreadPoolExecutor(4)
        self._calls: list[Future[None]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.host = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> FaultProxy:
        self._thread.start()
        server = asyncio.start_server(self._serve, sock=self._socket, limit=MOST_HEAD)
        asyncio.run_coroutine_threadsafe(server, self._loop).result(120)
        return self

    def __exit__(self, *exc: object) -> None:
        async def end() -> None:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(120)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(120)
        self._loop.close()
        self._pool.shutdown()
        self._socket.close()

    def begin(self, *faults: Fault) -> None:
        """Forgets what was counted, and begins another script."""
        self.exchanges = []
        self.faults = list(faults)

    def wait_idle(self) -> None:
        """Waits until no request and no call of a fault is under way, for minutes at most; raises what a call
        raised.
        """
        for call in self._calls:
            call.result(240)
        self._calls.clear()
        end = time.monotonic() + 120
        while self._under_way and time.monotonic() < end:
            time.sleep(0.01)

    def tokens(self) -> set[str]:
        """Every token that the client used."""
        return {login.partition(" ")[2] for login in self._tokens}

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)  # the loop itself holds only a weak reference
        task.add_done_callback(self._tasks.discard)
        with contextlib.suppress(OSError, EOFError, ValueError, Cut, asyncio.LimitOverrunError):
            while await self._one(reader, writer):
                pass
        with contextlib.suppress(OSError):
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Serves one request; returns whether the connection stays open."""
        request = await read_head(reader)
        fault = next((f for f in self.faults if f.meets(request, request.length)), Fault("", times=0))
        method, path = request.words[:2]
        exchange = Exchange(method, path, fault.name)
        self.exchanges.append(exchange)
        self._change_login(request, fault)
        self._under_way += 1
        try:
            return await self._serve_one(request, fault, exchange, reader, writer)
        finally:
            self._under_way -= 1

    async def _serve_one(
        self,
        request: Head,
        fault: Fault,
        exchange: Exchange,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bool:
        if fault.answer is not None:
            async for piece in body(reader, request):
                exchange.sent += len(piece)
            await reply(writer, *fault.answer)
            return True
        try:
            up_reader, up_writer = await connect(self.route(exchange.path))
        except OSError:  # the registry is down
            reset(writer)
            raise Cut from None
        try:
            answer = await self._ask(request, fault, exchange, reader, up_reader, writer, up_writer)
            await self._return(request, answer, fault, exchange, up_reader, writer)
        except (OSError, EOFError) as e:
            reset(writer)
            raise Cut from e
        finally:
            up_writer.transport.abort()
        return answer.get("connection").lower() != "close"

    def _change_login(self, request: Head, fault: Fault) -> None:
        login = request.get("authorization")
        if login.lower().startswith("bearer "):
            self._tokens.add(login)
        if fault.expire_tokens:
            self._expired |= self._tokens
        if fault.without_login or login in self._expired:
            request.put("Authorization", None)

    async def _ask(
        self,
        request: Head,
        fault: Fault,
        exchange: Exchange,
        reader: asyncio.StreamReader,
        up_reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        up_writer: asyncio.StreamWriter,
    ) -> Head:
        """Passes a request on; returns the head of the answer, which may come before the body is through."""
        answered = asyncio.Event()

        async def act() -> bytes | None:
            if fault.then is not None:
                self._calls.append(self._pool.submit(fault.then))
                await asyncio.wrap_future(self._calls[-1])
            if fault.pause_s and request.length:
                await asyncio.sleep(fault.pause_s)
            if fault.cut_request:
                await up_writer.drain()
                up_writer.close()
                raise EOFError
            return b"\x01" if fault.flip_request else None

        async def write(piece: bytes) -> None:
            exchange.sent += len(piece)
            if not answered.is_set():
                up_writer.write(framed(piece, request))
                await up_writer.drain()

        async def send() -> None:
            if not request.length and not request.chunked:
                await act()  # now: the answer to a request without a body may come at once
                up_writer.write(request.encoded())
                return
            up_writer.write(request.encoded())
            await _pump(body(reader, request), write, int(request.length * fault.at), act)
            if request.chunked:
                up_writer.write(b"0\r\n\r\n")

        async def head() -> Head:
            while (answer := await read_head(up_reader)).words[1] == "100":
                writer.write(answer.encoded())
            answered.set()
            return answer

        request.put("Connection", "close")
        sending, answering = asyncio.ensure_future(send()), asyncio.ensure_future(head())
        try:
            await asyncio.wait({sending, answering}, return_when=asyncio.FIRST_EXCEPTION)
            if sending.done() and not (answering.done() and not answering.exception()):
                sending.result()
            answer = await answering
            with contextlib.suppress(ConnectionError):  # it answered without reading the rest
                await sending
        finally:
            for task in (sending, answering):
                task.cancel()
            await asyncio.gather(sending, answering, return_exceptions=True)
        return answer

    async def _return(
        self,
        request: Head,
        answer: Head,
        fault: Fault,
        exchange: Exchange,
        up_reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Passes an answer back."""
        exchange.status = int(answer.words[1])
        has_body = request.words[0] != "HEAD" and exchange.status not in (204, 304)
        unknown_length = has_body and not answer.chunked and not answer.get("content-length")
        answer.put("Connection", "close" if unknown_length else None)
        place = int(answer.length * fault.at)
        for name, value in fault.headers.items():
            answer.put(name, value)
        if fault.lose_answer:
            raise EOFError
        pieces = body(up_reader, answer, to_end=unknown_length) if has_body else nothing()
        if fault.shorten:
            answer.put("Content-Length", str(place))

        async def act() -> bytes | None:
            if fault.pause_s and not request.length:
                await asyncio.sleep(fault.pause_s)
            if fault.cut_response:
                await writer.drain()
                raise Cut
            if fault.shorten:
                await writer.drain()
                raise _Enough
            return b"\x01" if fault.flip_response else None

        async def write(piece: bytes) -> None:
            exchange.received += len(piece)
            writer.write(framed(piece, answer))
            await writer.drain()

        writer.write(answer.encoded())
        with contextlib.suppress(_Enough):
            await _pump(pieces, write, place, act)
            if answer.chunked and has_body:
                writer.write(b"0\r\n\r\n")
        await writer.drain()


class _Enough(Exception):
    """The answer ends here."""


async def _pump(
    pieces: AsyncIterator[bytes],
    write: Callable[[bytes], Awaitable[None]],
    place: int,
    act: Callable[[], Awaitable[bytes | None]],
) -> None:
    """Writes all pieces; after ``place`` bytes ``act`` is called once, and may return a mask for the next
    byte.
    """
    done, acted = 0, False
    async for piece in pieces:
        if not acted and done + len(piece) > place:
            cut = place - done
            await write(piece[:cut])
            mask, acted = await act(), True
            rest = piece[cut:]
            piece = bytes([rest[0] ^ mask[0]]) + rest[1:] if mask else rest
            done += cut
        done += len(piece)
        await write(piece)
    if not acted:
        await act()
