"""What RECORD and conda-meta say about compiled modules."""

from __future__ import annotations

import json

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


def test_record_of_a_module_beside_site_packages() -> None:
    """A wheel's data may lie in the standard library's folder."""
    pyc = "opt/conda/lib/python3.11/__pycache__/x.cpython-311.pyc"
    assert with_bytecode("pip", b"", [pyc], CONTEXT) == b"../__pycache__/x.cpython-311.pyc,,\n"


def test_record_of_a_conda_package() -> None:
    """conda lists the paths in ``files``, and in ``paths_data`` with their type alone."""
    path = {"_path": "lib/python3.11/os.py", "path_type": "hardlink"}
    before = {
        "files": ["lib/python3.11/os.py"],
        "name": "python",
        "paths_data": {"paths": [path], "paths_version": 1},
    }
    pyc = "lib/python3.11/__pycache__/os.cpython-311.pyc"
    after = json.loads(with_bytecode("conda", json.dumps(before).encode(), [f"opt/conda/{pyc}"], CONTEXT))
    assert after == {
        "files": ["lib/python3.11/os.py", pyc],
        "name": "python",
        "paths_data": {"paths": [path, {"_path": pyc, "path_type": "pyc_file"}], "paths_version": 1},
    }
