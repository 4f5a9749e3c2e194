"""The layout of SIF files, version 01, as github.com/sylabs/sif (v2) defines it.

All numbers are little-endian.

A SIF is a header, a table of descriptors, and the objects that they describe. In what builder
writes::

    0        header
    4096     48 descriptors of 585 bytes, the unused ones zero
    32176    definition                 objects, one after the other
             inspect-metadata.json
             oci-config.json
             primary partition          partitions begin at multiples of 4 KiB
             overlay partitions

The runtime mounts the primary partition, and the overlay partitions of its group above it, in the
order of the table.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple

from builder.core.datafiles import table

HEADER = struct.Struct("<32s10s3s3s16s8q")
DESCRIPTOR = struct.Struct("<i?III7q128s384s")
#: File system, role, architecture.
PARTITION = struct.Struct("<ii3s")
MAGIC = b"SIF_MAGIC"
DESCRIPTOR_COUNT = 48
DESCRIPTORS_AT = 4096
DATA_AT = DESCRIPTORS_AT + DESCRIPTOR_COUNT * DESCRIPTOR.size
LONGEST_NAME = 127
#: Partitions begin at multiples of this many bytes.
ALIGNMENT = 4096
#: The group of all objects that builder writes: number 1, with the flag of groups.
GROUP = 0xF0000001
#: The names of the objects of type JSON. ``apptainer inspect`` looks for the first.
INSPECT_NAME = "inspect-metadata.json"
OCI_CONFIG_NAME = "oci-config.json"
#: The OCI's names of architectures, and SIF's numbers.
ARCHITECTURES: Mapping[str, bytes] = {
    name: number.encode() for name, number in table(__file__, "architectures.yaml").items()
}
#: The architecture of a header whose SIF has no primary partition yet.
NO_ARCHITECTURES = (b"", b"00")


class ObjectType(IntEnum):
    """The types of objects that builder reads or writes. SIFs can have others."""

    DEFINITION = 0x4001
    PARTITION = 0x4004
    JSON = 0x4006
    OCI_ROOT = 0x400A
    """The image index of an OCI-SIF, which holds OCI layers instead of partitions."""


class FileSystem(IntEnum):
    """The contents of partitions that builder knows."""

    SQUASHFS = 1
    ENCRYPTED_SQUASHFS = 5


class PartitionRole(IntEnum):
    """What the runtime does with a partition."""

    PRIMARY = 2
    OVERLAY = 4


class SifHeader(NamedTuple):
    """The header. Times are in seconds since 1970, offsets and sizes in bytes.

    The defaults are what builder writes into each SIF.
    """

    launch: bytes = b"#!/usr/bin/env run-singularity\n"
    """The first line of the file: it makes the SIF executable where the runtime is installed."""
    magic: bytes = MAGIC + b"\0"
    version: bytes = b"01\0"
    architecture: bytes = b""
    uuid: bytes = b""
    created: int = 0
    modified: int = 0
    free_descriptors: int = 0
    descriptors: int = DESCRIPTOR_COUNT
    descriptors_offset: int = DESCRIPTORS_AT
    descriptors_size: int = DESCRIPTOR_COUNT * DESCRIPTOR.size
    data_offset: int = DATA_AT
    data_size: int = 0


class SifDescriptor(NamedTuple):
    """One descriptor. Times are in seconds since 1970, offsets and sizes in bytes.

    The defaults are what builder writes into each descriptor.
    """

    type: int
    used: bool = True
    id: int = 0
    group: int = GROUP
    link: int = 0
    """The id of the object that this one belongs to; 0: none."""
    offset: int = 0
    size: int = 0
    size_with_padding: int = 0
    """With the unused bytes before the object."""
    created: int = 0
    modified: int = 0
    uid: int = 0
    gid: int = 0
    name: bytes = b""
    extra: bytes = b""
    """Depends on the type; of a partition a :data:`PARTITION`."""
