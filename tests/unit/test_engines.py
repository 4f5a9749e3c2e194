"""Engines without their programs: which fits which target, and what each is given to build."""

from __future__ import annotations

import hashlib
import stat
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from builder.bases.image import BaseImage
from builder.config.recipe import Recipe, Registry
from builder.engines.apptainer import Apptainer, definition, spython_build, step_of
from builder.engines.base import BuildRequest, BuildResult, cached_sif
from builder.engines.cotainr import PREFIX, Cotainr, environment_file, needs_serving, replace_prefix
from builder.engines.dispatch import ENGINES, find_engine, run_engine
from builder.engines.docker import dockerfile
from builder.engines.kit import PLACE, make_kit, micromamba, python_closure
from builder.engines.prepare import Prepared
from builder.errors import FetchError, ImageError, LockError, RunnerError, UsageError
from builder.layers.entry import LinkContext
from builder.model import (
    OCI_CONFIG,
    OCI_MANIFEST,
    Descriptor,
    Fetched,
    Image,
    Layer,
    Lock,
    LockedBase,
    LockedPackage,
    SifImage,
)
from builder.run.process import tail
from builder.settings import Settings
from builder.site.build_job import build_job, run_build_job
from builder.store.blobs import Store
from builder.store.files import place_file, sha256_file

HASH = "a" * 64


def package(
    name: str, manager: Any = "conda", version: str = "1.0", url: str = "", **more: Any
) -> LockedPackage:
    where = f"https://conda.anaconda.org/conda-forge/noarch/{name}-{version}-py_0.conda"
    if manager == "pip":
        where = f"https://files.example/{name}-{version}-py3-none-any.whl"
    return LockedPackage(name, version, manager, "linux-64", url or where, HASH, **more)


def request(tmp_path: Path, packages: Sequence[LockedPackage] = (), **recipe: Any) -> BuildRequest:
    settings = Settings.from_environment({"HOME": str(tmp_path)})
    data: dict[str, Any] = {
        "name": "t",
        "base": "debian:bookworm",
        "environment": "environments/t.yml",
        "root": tmp_path,
    }
    made = Recipe.model_validate({**data, "source": tmp_path / "recipes/t.yaml", **recipe})
    lock = Lock(
        tuple(packages),
        ("linux-64",),
        base=LockedBase("debian:bookworm", f"sha256:{HASH}"),
        digest="sha256:lock",
    )
    return BuildRequest(made, lock, b"version: 1\n", settings, Store(settings.cache))


def prepared(tmp_path: Path, packages: Sequence[LockedPackage], **env: str) -> Prepared:
    fetched = []
    for p in packages:
        path = tmp_path / p.filename
        path.write_text(p.name)
        fetched.append(Fetched(p, path, path.stat().st_size))
    base = BaseImage(
        "debian:bookworm", f"sha256:{HASH}", {"architecture": "amd64", "config": {"User": "nobody"}}, ()
    )
    files = Layer(Descriptor("application/x", "sha256:x", 1), "sha256:y", tmp_path / "files")
    (tmp_path / "files").write_bytes(b"tar")
    return Prepared(
        base,
        tuple(fetched),
        LinkContext("/opt/conda", "3.11", "lib/python3.11/site-packages"),
        files,
        env,
        {},
    )


# which engine ---------------------------------------------------------------------------------------------------------


def test_every_engine_is_found_by_its_name() -> None:
    for name in ENGINES:
        assert find_engine(name).name == name
    with pytest.raises(UsageError, match=r"no engine named 'buildah'\n.*layered, docker, apptainer, cotainr"):
        find_engine("buildah")


@pytest.mark.parametrize(
    ("engine", "format", "message", "hint"),
    [
        (
            "docker",
            "sif",
            "the engine docker makes OCI images, and target t is a SIF",
            "layered, apptainer or cotainr",
        ),
        (
            "apptainer",
            "oci",
            "the engine apptainer makes SIFs, and target t is an OCI image",
            "layered or docker",
        ),
        (
            "cotainr",
            "oci",
            "the engine cotainr makes SIFs, and target t is an OCI image",
            "layered or docker",
        ),
    ],
)
def test_an_engine_of_the_wrong_format_is_refused(
    tmp_path: Path, engine: str, format: str, message: str, hint: str
) -> None:
    with pytest.raises(UsageError) as caught:
        run_engine(find_engine(engine), request(tmp_path, format=format))
    assert message in caught.value.message and "recipes/t.yaml: format:" in caught.value.message
    assert f"--engine {hint}" in caught.value.hint


@pytest.mark.parametrize(
    ("engine", "missing"),
    [("apptainer", "apptainer nor singularity"), ("cotainr", "cotainr is not installed")],
)
def test_an_engine_without_its_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, missing: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(RunnerError) as caught:
        run_engine(find_engine(engine), request(tmp_path, format="sif"))
    assert (
        f"the engine {engine} does not work here" in caught.value.message and missing in caught.value.message
    )
    assert "--engine layered" in caught.value.hint


def test_the_result_is_the_sif_where_there_is_one(tmp_path: Path) -> None:
    sif = SifImage(tmp_path / "x.sif", "sha256:sif", 7)
    image: Any = Image((), b"", Descriptor("", "", 0), b"", Descriptor("", "sha256:image", 0))
    r = request(tmp_path)
    both = BuildResult(r.recipe, r.lock, LockedBase("", ""), image, sif)
    assert both.artifact is sif and both.digest == "sha256:sif"
    assert replace(both, sif=None).digest == "sha256:image"


def test_a_finished_file_is_placed_whole_and_again(tmp_path: Path) -> None:
    source, target = tmp_path / "cache/a.sif", tmp_path / "dist/t.sif"
    source.parent.mkdir()
    source.write_bytes(b"one")
    for text in (b"one", b"one", b"two"):
        if source.read_bytes() != text:
            source.unlink()
            source.write_bytes(text)
        place_file(source, target)
        assert target.read_bytes() == text
    assert [p.name for p in target.parent.iterdir()] == ["t.sif"]


def test_tail_keeps_the_last_lines_that_say_something() -> None:
    assert tail(["a", "", "b\n", " "], 1) == "    b"


# the kit --------------------------------------------------------------------------------------------------------------


def test_wheels_need_a_pip_that_installs_them(tmp_path: Path) -> None:
    packages = [package("python", version="3.11.9"), package("torch", "pip")]
    with pytest.raises(LockError, match=r"wheels but no pip from conda(.|\n)*--engine layered"):
        make_kit(request(tmp_path, packages), prepared(tmp_path, packages))


def test_rattler_needs_a_python_that_it_runs_on(tmp_path: Path) -> None:
    packages = [package("zlib")]
    made = replace(prepared(tmp_path, packages), context=LinkContext("/opt/conda", "", ""))
    with pytest.raises(LockError, match=r"locks no python, and rattler needs 3.10(.|\n)*micromamba"):
        make_kit(request(tmp_path, packages, installer={"program": "rattler"}), made)


def test_micromamba_from_a_file_installs_an_explicit_list(tmp_path: Path) -> None:
    (tmp_path / "micromamba").write_bytes(b"\x7fELF")
    packages = [
        package("python", version="3.11.9"),
        package("pip", dependencies={"python": ""}),
        package("torch", "pip", "2.0"),
    ]
    r = request(tmp_path, packages, installer={"program": "micromamba", "micromamba": "micromamba"})
    kit = make_kit(r, prepared(tmp_path, packages))
    assert kit.program == "micromamba" and kit.members["micromamba"] == tmp_path / "micromamba"
    assert kit.members["conda.txt"] == (
        b"@EXPLICIT\n"
        + f"file://{PLACE}/conda/noarch/python-3.11.9-py_0.conda\n".encode()
        + f"file://{PLACE}/conda/noarch/pip-1.0-py_0.conda\n".encode()
    )
    assert kit.members["requirements.txt"] == f"torch==2.0 --hash=sha256:{HASH}\n".encode()
    script = kit.members["install.sh"]
    assert (
        isinstance(script, bytes) and b'"$kit/micromamba" create' in script and b"--require-hashes" in script
    )
    assert subprocess.run(["sh", "-n"], input=script).returncode == 0


def test_micromamba_from_an_image_is_looked_for_once(tmp_path: Path) -> None:
    from builder.oci.layout import write_layout
    from tests.support.image_kit import image, layer, member

    other = Store(tmp_path / "other")
    made = image(other, layer(other, member("usr/bin/micromamba", b"\x7fELF of an image")))
    write_layout(made, tmp_path / "mamba", "v1", other)
    r = request(tmp_path, installer={"micromamba": "oci:mamba:v1"})
    first = micromamba(r)
    assert first.read_bytes() == b"\x7fELF of an image"
    stamp = first.stat().st_mtime_ns
    assert micromamba(r) == first and first.stat().st_mtime_ns == stamp


def test_micromamba_that_cannot_be_had_gives_way_to_rattler_unless_it_was_asked_for(tmp_path: Path) -> None:
    packages = [package("zlib")]
    missing = {"micromamba": "bin/micromamba"}
    with pytest.raises(
        FetchError, match=r"recipes/t.yaml: installer.micromamba: .*bin/micromamba does not exist"
    ):
        make_kit(
            request(tmp_path, packages, installer={"program": "micromamba", **missing}),
            prepared(tmp_path, packages),
        )
    with pytest.raises(LockError, match="zlib|rattler"):  # it went on to rattler, which lacks a Python here
        without = replace(prepared(tmp_path, packages), context=LinkContext("/opt/conda", "", ""))
        make_kit(request(tmp_path, packages, installer=missing), without)


def test_python_closure_is_what_python_needs() -> None:
    packages = [
        package("python", dependencies={"openssl": "", "__glibc": ""}),
        package("openssl", dependencies={"libc": ""}),
        package("libc"),
        package("numpy", dependencies={"python": ""}),
    ]
    assert [p.name for p in python_closure(packages)] == ["libc", "openssl", "python"]


# Dockerfile and definition file ---------------------------------------------------------------------------------------


def test_dockerfile(tmp_path: Path) -> None:
    r = request(tmp_path, cmd=("python", "-c", 'print("$HOME")'), workdir="/app", labels={"a.b": 'say "hi"'})
    text = dockerfile(
        r,
        prepared(tmp_path, [], PATH="/opt/conda/bin:/bin", QUOTED='a"b\\c$d'),
        "registry.example/base@sha256:1",
    )
    lines = text.splitlines()
    assert (
        lines.count("FROM registry.example/base@sha256:1") == 1
        and "FROM registry.example/base@sha256:1 AS install" in lines
    )
    assert f'RUN ["/bin/sh", "{PLACE}/install.sh"]' in lines
    assert 'COPY --from=install ["/opt/conda", "/opt/conda"]' in lines
    assert 'ENV QUOTED="a\\"b\\\\c\\$d"' in lines
    assert 'LABEL "a.b"="say \\"hi\\""' in lines
    assert lines[-3:] == [
        "USER nobody",
        'ENTRYPOINT ["/opt/builder/entrypoint"]',
        'CMD ["python", "-c", "print(\\"$HOME\\")"]',
    ]


def test_definition_file(tmp_path: Path) -> None:
    r = request(tmp_path, cmd=("python", "-c", "print(1)"), workdir="/app", labels={"title": "two\nlines"})
    text = definition(r, prepared(tmp_path, [], GREETING="a 'quoted' $value"), ("oci", "base"), "kit")
    assert "Bootstrap: oci\nFrom: base\n" in text
    assert f"%files\n    kit {PLACE}\n" in text
    assert """ export GREETING='a '"'"'quoted'"'"' $value'\n""" in text
    assert "    [ \"$#\" -gt 0 ] || set -- python -c 'print(1)'\n" in text
    assert '    exec /opt/builder/entrypoint "$@"\n' in text
    assert "    title two lines\n" in text


# spython hides failures -----------------------------------------------------------------------------------------------


def fake_singularity(folder: Path, script: str) -> dict[str, str]:
    """A program of that name: what is tested is what builder makes of spython's answer to it."""
    folder.mkdir(exist_ok=True)
    program = folder / "singularity"
    program.write_text(f'#!/bin/sh\ncase "$*" in *--help*|*--version*|version) exit 0;; esac\n{script}\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (
            "echo 'INFO: Running post scriptlet'; echo 'FATAL: no luck' >&2; exit 255",
            "ended with code 255, in %post",
        ),
        ("exit 0", "said nothing of a failure, but left no file, before the base was unpacked"),
        ('for last; do :; done; echo x > "${last%.def}.sif"; exit 1', "ended with code 1"),
    ],
)
def test_what_spython_hides_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, said: str
) -> None:
    monkeypatch.setenv("PATH", fake_singularity(tmp_path / "bin", script)["PATH"])
    (tmp_path / "image.def").write_text("Bootstrap: docker\n")
    with pytest.raises(ImageError) as caught:
        spython_build(tmp_path / "image.def", tmp_path / "image.sif", request(tmp_path, format="sif"))
    assert f"apptainer build of target t {said}" in caught.value.message
    if "FATAL" in script:
        assert "FATAL: no luck" in caught.value.message


def test_spython_itself_hides_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Why this is looked at so closely: were it otherwise one day, the code could be simpler."""
    from spython.main import get_client

    monkeypatch.setenv("PATH", fake_singularity(tmp_path / "bin", "exit 255")["PATH"])
    client = get_client(quiet=True)
    assert client.build(str(tmp_path / "x.def"), str(tmp_path / "x.sif"), sudo=False, quiet=True) is None
    pulled = client.pull("docker://example.org/nothing:1", pull_folder=str(tmp_path), quiet=True)
    assert pulled is not None and not Path(str(pulled)).exists()


def test_the_step_of_a_failed_build() -> None:
    assert step_of([]) == "before the base was unpacked"
    assert step_of(["INFO:    Running post scriptlet", "x"]) == "in %post (installing the lock)"
    assert step_of(["INFO:    Running post scriptlet", "INFO:    Creating SIF file..."]) == "writing the SIF"


# cotainr --------------------------------------------------------------------------------------------------------------


def test_cotainr_environment_has_one_solution(tmp_path: Path) -> None:
    packages = [
        package("python", version="3.11.9"),
        package(
            "local",
            url="https://user:secret@mirror.example/t/token123/own/noarch/local-2.0-h1_3.tar.bz2",
            version="2.0",
        ),
        package("torch", "pip", "2.0+rocm"),
    ]
    pip = {
        "index_url": "https://user:secret@index.example/simple",
        "extra_index_urls": ["https://rocm.example/whl"],
    }
    r = request(tmp_path, packages, format="sif", pip=pip)
    text = environment_file(r, None)
    data = yaml.safe_load(text)
    assert data["channels"] == ["https://mirror.example/t/***/own", "conda-forge", "nodefaults"]
    assert data["dependencies"][:2] == ["local=2.0=h1_3", "python=3.11.9=py_0"]
    assert data["dependencies"][2]["pip"] == [
        "--index-url https://index.example/simple",
        "--extra-index-url https://rocm.example/whl",
        f"torch==2.0+rocm --hash=sha256:{HASH}",
    ]
    assert "secret" not in text and "token123" not in text
    served = yaml.safe_load(environment_file(r, "http://127.0.0.1:1"))
    assert served["channels"] == ["http://127.0.0.1:1/conda", "nodefaults"]
    assert served["dependencies"][2]["pip"][0] == "--no-index --find-links http://127.0.0.1:1/wheels/"


@pytest.mark.parametrize(
    ("url", "served"),
    [
        ("https://conda.anaconda.org/conda-forge/noarch/a-1.0-0.conda", False),
        ("https://$TOKEN@conda.example/own/noarch/a-1.0-0.conda", True),
        ("https://conda.example/t/secret/own/noarch/a-1.0-0.conda", True),
        ("builder://debian/noarch/a-1.0-0.conda", True),
    ],
)
def test_cotainr_gets_from_builder_what_it_cannot_get_by_itself(
    tmp_path: Path, url: str, served: bool
) -> None:
    r = request(tmp_path, [package("a", url=url)], format="sif")
    assert needs_serving(r) is served
    assert needs_serving(replace(r, settings=replace(r.settings, offline=True)))
    assert needs_serving(
        replace(r, settings=replace(r.settings, mirrors=(("https://conda.anaconda.org", "/mirror"),)))
    )


def test_cotainr_has_a_prefix_of_its_own(tmp_path: Path) -> None:
    r = replace_prefix(request(tmp_path, format="sif"))
    assert r.recipe.conda.prefix == PREFIX


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Programs named cotainr and singularity that end with 0 and do nothing else but tell."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("cotainr", "singularity"):
        (folder / name).write_text(
            f"#!/bin/sh\necho 'Cotainr:-: nothing to do'; echo \"$*\" >> {tmp_path}/started\n"
        )
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.delenv("BUILDER_ACCEPT_LICENSES", raising=False)
    return folder


def test_cotainr_does_not_start_before_the_licence_is_accepted(tmp_path: Path, programs: Path) -> None:
    with pytest.raises(UsageError, match=r"Miniforge(.|\n)*licence was not accepted(.|\n)*--accept-licenses"):
        run_engine(Cotainr(), request(tmp_path, format="sif"))
    assert not (tmp_path / "started").exists()


def test_a_licence_is_accepted_for_all_commands(
    tmp_path: Path, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUILDER_ACCEPT_LICENSES", "1")
    with pytest.raises(ImageError, match="left no file"):
        run_engine(
            Cotainr(), request(tmp_path, [package("zlib")], format="sif", cotainr={"system": "lumi-g"})
        )
    assert "--accept-licenses" in (tmp_path / "started").read_text()


def test_cotainr_that_ends_well_and_leaves_no_file(tmp_path: Path, programs: Path) -> None:
    asked = request(tmp_path, [package("zlib")], format="sif", cotainr={"system": "lumi-g"})
    with pytest.raises(ImageError) as caught:
        run_engine(Cotainr(), replace(asked, accept_licenses=True))
    assert (
        "cotainr build of target t ended with code 0, but left no file:\n    Cotainr:-: nothing to do"
        in caught.value.message
    )
    words = (tmp_path / "started").read_text().split()
    assert words[0] == "build" and "--system=lumi-g" in words and "--accept-licenses" in words
    assert not [w for w in words if w.startswith("--base-image")]


# the last build of an engine that builds anew each time ----------------------------------------------------------------


class Anew:
    """An engine whose every build is another, as docker's, apptainer's and cotainr's are."""

    name = "anew"
    formats = frozenset({"oci", "sif"})
    repeatable = False

    def __init__(self) -> None:
        self.builds = 0

    def available(self) -> str | None:
        return None

    def build(self, request: BuildRequest) -> BuildResult:
        self.builds += 1
        data = f"build {self.builds}".encode()
        moved = replace_prefix(request).recipe
        result = BuildResult(
            moved,
            request.lock,
            LockedBase("b", "sha256:b"),
            engine=self.name,
            notes=("by hand",),
            definition=("def", "x"),
        )
        if request.recipe.format == "sif":
            path = cached_sif(request, self.name)
            path.write_bytes(data)
            return replace(result, sif=SifImage(path, sha256_file(path), len(data)))
        layer = Layer(
            Descriptor("application/x", request.store.add(data), len(data)),
            "sha256:d",
            request.store.path(f"sha256:{hashlib.sha256(data).hexdigest()}"),
            title="one",
            packages=("a",),
            unpacked=7,
        )
        return replace(
            result,
            image=Image(
                (layer,), b"{}", Descriptor.of(OCI_CONFIG, b"{}"), data, Descriptor.of(OCI_MANIFEST, data)
            ),
        )


@pytest.mark.parametrize("format", ["oci", "sif"])
def test_what_was_built_is_what_is_tested_and_published(tmp_path: Path, format: str) -> None:
    engine, asked = Anew(), request(tmp_path, [package("zlib")], format=format)
    first = run_engine(engine, asked)
    again = run_engine(engine, asked)
    assert engine.builds == 1 and again.artifact == first.artifact and again.base == first.base
    assert (
        again.recipe == first.recipe
        and again.recipe.conda.prefix == PREFIX
        and again.definition == ("def", "x")
    )
    assert (
        again.notes[0] == "by hand"
        and "nothing of it has changed" in again.notes[1]
        and "--rebuild" in again.notes[1]
    )
    assert run_engine(engine, replace(asked, rebuild=True)).digest != first.digest and engine.builds == 2
    moved = replace(
        asked, recipe=asked.recipe.model_copy(update={"registry": Registry(repository="else/where")})
    )
    assert run_engine(engine, moved).digest != first.digest and engine.builds == 2, (
        "where it goes is not what it is"
    )


@pytest.mark.parametrize(
    "change",
    [
        {"recipe": {"labels": {"a": "b"}}},
        {"recipe": {"sif": {"layout": "layered"}}},
        {"recipe": {"installer": {"program": "rattler"}}},
        {"lock_text": b"version: 1 # another\n"},
        {"annotations": {"org.opencontainers.image.revision": "2"}},
        {"requested": frozenset({"zlib"})},
        {"file": "changed"},
        {"base": LockedBase("debian:bookworm", "sha256:" + "c" * 64)},
        {"epoch": 1},
    ],
)
def test_whatever_goes_in_has_it_built_anew(tmp_path: Path, change: dict[str, Any]) -> None:
    (tmp_path / "train.py").write_text("one")
    files = [{"source": "train.py", "target": "/app/train.py"}]
    engine, asked = Anew(), request(tmp_path, [package("zlib")], format="sif", files=files)
    run_engine(engine, asked)
    if "recipe" in change:
        changed = replace(
            asked, recipe=request(tmp_path, format="sif", files=files, **change["recipe"]).recipe
        )
    elif "file" in change:
        (tmp_path / "train.py").write_text(change["file"])
        changed = asked
    elif "base" in change:
        changed = replace(asked, lock=replace(asked.lock, base=change["base"]))
    elif "epoch" in change:
        changed = replace(asked, settings=replace(asked.settings, epoch=1))
    else:
        changed = replace(asked, **change)
    run_engine(engine, changed)
    run_engine(engine, changed)
    assert engine.builds == 2


def test_a_kept_build_that_is_not_whole_any_more_is_built_again(tmp_path: Path) -> None:
    engine, asked = Anew(), request(tmp_path, [package("zlib")], format="sif")
    sif = run_engine(engine, asked).sif
    assert sif is not None
    sif.path.write_bytes(b"cut")
    assert run_engine(engine, asked).digest != sif.digest and engine.builds == 2
    cached_sif(asked, engine.name).with_suffix(".json").write_text("{}")
    run_engine(engine, asked)
    assert engine.builds == 3
    cached_sif(asked, engine.name).unlink()
    run_engine(engine, asked)
    assert engine.builds == 4
    image = request(tmp_path, [package("zlib")], format="oci")
    layer = run_engine(engine, image).image.layers[0]  # type: ignore[union-attr]
    assert layer.path is not None
    layer.path.unlink()
    run_engine(engine, image)
    assert engine.builds == 6


def test_a_lock_without_a_base_is_built_each_time(tmp_path: Path) -> None:
    engine, asked = Anew(), request(tmp_path, [package("zlib")], format="sif")
    asked = replace(asked, lock=replace(asked.lock, base=None))
    run_engine(engine, asked)
    run_engine(engine, asked)
    assert engine.builds == 2


# on a compute node ----------------------------------------------------------------------------------------------------

SITE = {
    "title": "Site",
    "launcher": "torchrun",
    "slurm": {
        "account": "required",
        "account_example": "project_465000000",
        "queues": {
            "build": {
                "partition": "debug",
                "memory": "64G",
                "cpus_per_task": 32,
                "time": "00:30:00",
                "options": ["--exclusive"],
            }
        },
    },
}


def test_build_job_has_the_values_of_the_site(tmp_path: Path) -> None:
    job = build_job(request(tmp_path, site=SITE).recipe, ["builder", "build", "t"], account="project_1")
    assert job == [
        "srun",
        "--nodes=1",
        "--ntasks=1",
        "--account=project_1",
        "--partition=debug",
        "--time=00:30:00",
        "--mem=64G",
        "--cpus-per-task=32",
        "--exclusive",
        "--job-name=builder-t",
        "builder",
        "build",
        "t",
    ]
    assert "--time=1:00" in build_job(request(tmp_path, site=SITE).recipe, ["x"], account="p", time="1:00")


def test_build_job_loads_the_modules_of_the_site(tmp_path: Path) -> None:
    site = {**SITE, "modules": ["LUMI", "cotainr"], "setup": ["export A=1"]}
    job = build_job(request(tmp_path, site=site).recipe, ["builder", "a b"], account="p")
    assert job[-4:-1] == ["bash", "-l", "-c"]
    assert job[-1] == "set -e\nmodule load LUMI\nmodule load cotainr\nexport A=1\nexec builder 'a b'"


def test_build_job_without_an_account_or_without_slurm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_ACCOUNT", raising=False)
    with pytest.raises(UsageError, match=r"Site needs an account(.|\n)*--account project_465000000"):
        build_job(request(tmp_path, site=SITE).recipe, ["x"])
    with pytest.raises(UsageError, match=r"site.slurm is not set: target t has no compute nodes"):
        build_job(request(tmp_path).recipe, ["x"])
    monkeypatch.setenv("SLURM_ACCOUNT", "project_2")
    assert not [w for w in build_job(request(tmp_path, site=SITE).recipe, ["x"]) if w.startswith("--account")]


def test_a_build_job_where_there_is_no_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RunnerError, match=r"srun is not installed here\n.*login node"):
        run_build_job(request(tmp_path, site=SITE).recipe, ["srun", "x"])


def test_an_apptainer_is_found_under_both_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert Apptainer().available() == "neither apptainer nor singularity is installed"
    (tmp_path / "apptainer").write_text("#!/bin/sh\necho broken >&2; exit 1\n")
    (tmp_path / "apptainer").chmod(0o755)
    assert Apptainer().available() == f"{tmp_path}/apptainer does not work: broken"
    assert sha256_file(tmp_path / "apptainer").startswith("sha256:")
