"""HTTP/1.1 messages on asyncio streams, for a proxy of the tests."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass

#: A unix socket, or a host and port.
Address = str | tuple[str, int]
PIECE = 1 << 16
#: Of a request or an answer, in bytes, with its headers.
MOST_HEAD = 1 << 17


@dataclass
class Head:
    """The first line of a message and its headers, with lower-case names."""

    line: str
    headers: list[tuple[str, str]]

    @property
    def words(self) -> list[str]:
        return self.line.split(" ", 2)

    def get(self, name: str) -> str:
        return next((v for k, v in self.headers if k.lower() == name), "")

    def put(self, name: str, value: str | None) -> None:
        self.headers = [(k, v) for k, v in self.headers if k.lower() != name.lower()]
        if value is not None:
            self.headers.append((name, value))

    @property
    def length(self) -> int:
        return int(self.get("content-length") or 0)

    @property
    def chunked(self) -> bool:
        return "chunked" in self.get("transfer-encoding").lower()

    def encoded(self) -> bytes:
        lines = [self.line, *(f"{k}: {v}" for k, v in self.headers), "", ""]
        return "\r\n".join(lines).encode("latin-1")


async def read_head(reader: asyncio.StreamReader) -> Head:
    first = await reader.readexactly(1)
    if not first.isalpha():
        raise ValueError("not HTTP: a client that tries TLS first")
    text = (first + await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    line, *rest = text[:-4].split("\r\n")
    pairs = (header.partition(":") for header in rest)
    return Head(line, [(name.strip(), value.strip()) for name, _, value in pairs])


async def body(reader: asyncio.StreamReader, head: Head, *, to_end: bool = False) -> AsyncIterator[bytes]:
    """The bytes of a message's body, without the framing of chunks."""
    if to_end:
        while piece := await reader.read(PIECE):
            yield piece
        return
    if not head.chunked:
        async for piece in _exactly(reader, head.length):
            yield piece
        return
    while size := int((await reader.readline()).split(b";")[0] or b"0", 16):
        async for piece in _exactly(reader, size):
            yield piece
        await reader.readline()
    while (await reader.readline()).strip():
        pass


async def _exactly(reader: asyncio.StreamReader, length: int) -> AsyncIterator[bytes]:
    while length:
        piece = await reader.read(min(length, PIECE))
        if not piece:
            raise EOFError
        length -= len(piece)
        yield piece


async def nothing() -> AsyncIterator[bytes]:
    pieces: Iterable[bytes] = ()
    for piece in pieces:
        yield piece


def framed(piece: bytes, head: Head) -> bytes:
    return f"{len(piece):x}\r\n".encode() + piece + b"\r\n" if head.chunked and piece else piece


async def connect(address: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection whose ``drain`` waits until the kernel has every byte."""
    if isinstance(address, str):
        reader, writer = await asyncio.open_unix_connection(address, limit=MOST_HEAD)
    else:
        reader, writer = await asyncio.open_connection(*address, limit=MOST_HEAD)
    writer.transport.set_write_buffer_limits(high=0)
    return reader, writer


async def reply(writer: asyncio.StreamWriter, status: int, headers: Mapping[str, str]) -> None:
    head = Head(f"HTTP/1.1 {status} Fault", [*headers.items(), ("Content-Length", "0")])
    writer.write(head.encoded())
    await writer.drain()


def reset(writer: asyncio.StreamWriter) -> None:
    """Ends a connection with RST, as a crashed peer or a middlebox does."""
    with contextlib.suppress(OSError):
        raw = writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
