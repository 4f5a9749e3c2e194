"""What RECORD and conda-meta say about compiled modules."""

from __future__ import annotations

from builder.bytecode.records import with_bytecode
from tests.support.wheels import CONTEXT

SITE = "opt/conda/lib/python3.11/site-packages"


def test_record_of_a_wheel() -> None:
    """The new rows are those that pip 26 writes for the same files, without hash and size."""
    record = b'six.py,sha256=x,3\n"a,b/c.py",sha256=z,1\nsix-1.0.dist-info/RECORD,,\n'
    pycs = [f"{SITE}/six/__pycache__/z.cpython-311.pyc", f"{SITE}/__pycache__/six.cpython-311.pyc"]
    rows = b"__pycache__/six.cpython-311.pyc,,\nsix/__pycache__/z.cpython-311.pyc,,\n"
    assert with_bytecode("pip", record, pycs, CONTEXT) == record + rows


def test_hostile_record() -> None:
    """A wheel can put anything in the place of a hash, more than a parser of rows accepts, too."""
    record = f'six.py,{"x" * 200_000},3\n"a\nb.py",,\n'.encode()
    pycs = [f"{SITE}/__pycache__/a\nb.cpython-311.pyc"]
    rows = b'"__pycache__/a\nb.cpython-311.pyc",,\n'
    assert with_bytecode("pip", record, pycs, CONTEXT) == record + rows
