"""Job scripts run by bash. srun, scontrol and the runtimes are small stand-ins that record their
arguments."""

from __future__ import annotations

import itertools
import json
import os
import re
import secrets
import shutil
import socket
import stat
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from builder.deliver.site.job_plan import plan_job
from builder.deliver.site.render import render
from builder.deliver.site.request import JobRequest
from builder.lock.config.recipe import load_recipe

ROOT = Path(__file__).parents[4]


#: Words that need correct quoting.
AWKWARD = ("python", "train.py", "a b", "it's", '"q"', "$HOME", "`id`", "\\", "!x", "*", "", "ü\n2")


SRUN = """\
#!/bin/bash
# Runs its command once per task, like srun, with the variables of the task.
tasks=$SLURM_NTASKS
while [[ $1 == --* ]]; do
    [[ $1 == --ntasks=* ]] && tasks=${1#*=}
    [[ $1 == --cpus-per-task=* ]] && export CORES=${1#*=}
    shift
done
for ((i = 0; i < tasks; i++)); do
    export SLURM_PROCID=$i SLURM_LOCALID=$((i % SLURM_NTASKS_PER_NODE))
    SLURM_NODEID=$((i / SLURM_NTASKS_PER_NODE)) "$@" || exit
done
"""


#: A container runtime: records its arguments and environment as one line of JSON; FAIL is its exit code.
#: Its storage has one image: at once, or with IMAGE=pull after a pull, or with IMAGE=local so that only this
#: node sees it. podman-hpc's ``image inspect`` knows what was pulled on this node.
RUNTIME = """\
#!{python} -IS
import json, os, sys
image, pulled = os.environ.get("IMAGE", ""), os.environ["RECORD"] + ".pulled"
here = image in ("", "local") or image == "pull" and os.path.exists(pulled)
if sys.argv[1] == "pull":
    open(pulled, "w").write(" ".join(sys.argv[1:]))
    sys.exit(int(os.environ.get("PULL", "0")))
if sys.argv[1] == "image":
    if here:
        digests = os.environ.get("FOUND", "h.example/a@sha256:feed sha256:cafe")
        print("cafe" if "podman-hpc" in sys.argv[0] else digests)
    sys.exit(0 if here else 1)
if sys.argv[1] == "images":
    if here:
        readonly = "false" if image == "local" else "true"
        print(readonly, "sha256:cafe", *(["sha256:feed"] if "Digest" in " ".join(sys.argv) else []))
    sys.exit(0)
with open(os.environ["RECORD"], "a") as file:
    found = {{k: v for k, v in os.environ.items()}}
    data = os.environ.get("BUILDER_DATA", "")
    files = sorted(os.listdir(data)) if data else []
    file.write(json.dumps({{"words": sys.argv, "env": found, "cwd": os.getcwd(), "data": files}}) + "\\n")
print("stand-in output", os.environ.get("SAY", ""))
sys.exit(int(os.environ.get("FAIL", "0")))
"""


@dataclass
class Cluster:
    """A folder of stand-ins and a folder to submit from."""

    root: Path
    env: dict[str, str]

    @property
    def pulled(self) -> Path:
        """The arguments of the last pull, if there was one."""
        return self.root / "record.pulled"

    def run(self, script: str, code: int = 0, **env: str) -> list[dict[str, Any]]:
        """Runs a script as Slurm would. Returns the record of each task."""
        record = self.root / "record"
        record.unlink(missing_ok=True)
        self.pulled.unlink(missing_ok=True)
        done = subprocess.run(
            ["bash", "-s"],
            input=script.replace("/work/acc/acc/", f"{self.root}/"),  # HOME on Cirrus
            text=True,
            capture_output=True,
            cwd=self.root / "submit",
            env={**self.env, **env},
        )
        assert done.returncode == code, done.stdout + done.stderr
        self.output = done.stdout + done.stderr
        return [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    user = f"me{secrets.token_hex(8)}"  # names in /tmp that no other user has
    folder = tmp_path / "bin"
    folder.mkdir()
    (tmp_path / "submit").mkdir()
    scripts = {
        "srun": SRUN,
        "scontrol": "#!/bin/sh\nprintf '%s\\n' node-a node-b\n",
        **dict.fromkeys(
            ("singularity", "apptainer", "podman-hpc", "docker", "builder"),
            RUNTIME.format(python=sys.executable),
        ),
    }
    for name, text in scripts.items():
        path = folder / name
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    env = {
        "PATH": f"{folder}:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "USER": user,
        "RECORD": str(tmp_path / "record"),
        "SCRATCH": str(tmp_path),
        "SLURM_TMPDIR": str(tmp_path / "node"),
        "SLURM_JOB_ID": "4711",
        "SLURM_JOB_NODELIST": "node-[a-b]",
        "SLURM_NTASKS": "1",
        "SLURM_NTASKS_PER_NODE": "1",
        "SLURM_NNODES": "1",
        "SLURM_CPUS_PER_TASK": "6",
        "SLURM_SUBMIT_DIR": str(tmp_path / "submit"),
        # The shell function of real sites fails with set -u, too.
        "BASH_FUNC_module%%": '() { : "$UNSET_VARIABLE_OF_A_MODULE"; }',
    }
    (tmp_path / "images").mkdir()
    for target in ("alliance-fir", "alliance-narval"):
        (tmp_path / "images" / f"{target}.sif").touch()
    yield Cluster(tmp_path, env)
    for path in Path("/tmp").glob(f"{user}-*"):
        shutil.rmtree(path)


def script(target: str, command: tuple[str, ...] = AWKWARD, **request: Any) -> str:
    account = "project_465000000" if target == "lumi-g" else "acc"
    return render(
        plan_job(load_recipe(target, ROOT), JobRequest(command=command, account=account, **request))
    )


def options(words: list[str], name: str) -> dict[str, str]:
    """Returns the values of an option that is repeated as NAME=VALUE."""
    given = [words[i + 1] for i, w in enumerate(words) if w == name]
    return dict(w.split("=", 1) for w in given if "=" in w)


def inside(words: list[str]) -> dict[str, str]:
    """Returns the variables that env sets in the container, before the command."""
    behind = words[words.index("env") + 1 :]
    return dict(word.split("=", 1) for word in itertools.takewhile(_is_variable, behind))


def _is_variable(word: str) -> bool:
    return re.match(r"\w+=", word) is not None


def test_command_is_unchanged(cluster: Cluster) -> None:
    """Every launcher passes the command's words unchanged."""
    image = cluster.root / "my image.sif"
    image.touch()
    for target, name in (("alliance-fir", image), ("perlmutter", "cafe"), ("cirrus", image)):
        (task,) = cluster.run(script(target, image=str(image)))
        words = task["words"]
        assert words[-len(AWKWARD) :] == list(AWKWARD) and str(name) in words, target
    for target, launcher in (("cpu", None), ("chameleon-a100", "torchrun")):
        (task,) = cluster.run(script(target, launcher=launcher))
        assert task["words"][-len(AWKWARD) :] == list(AWKWARD), target


def test_rank_variables(cluster: Cluster) -> None:
    """Each process gets its rank."""
    many = {
        "SLURM_NTASKS": "8",
        "SLURM_NTASKS_PER_NODE": "4",
        "SLURM_NNODES": "2",
        "CUDA_VISIBLE_DEVICES": "0,1,2,3",
    }
    tasks = cluster.run(script("alliance-narval", nodes=2), **many)
    env = [inside(t["words"]) for t in tasks]
    assert [(e["RANK"], e["LOCAL_RANK"], e["WORLD_SIZE"]) for e in env] == [
        (str(i), str(i % 4), "8") for i in range(8)
    ]
    assert {e["MASTER_ADDR"] for e in env} == {"node-a"} and len({e["MASTER_PORT"] for e in env}) == 1
    clean = tasks[5]["env"]
    assert "--cleanenv" in tasks[5]["words"]
    assert (
        clean["APPTAINERENV_SLURM_PROCID"] == "5" and clean["APPTAINERENV_CUDA_VISIBLE_DEVICES"] == "0,1,2,3"
    )
    assert not any(k.startswith("APPTAINERENV_HOME") for k in clean)
    assert clean["CORES"] == "6"
    tasks = cluster.run(script("perlmutter", nodes=2), **many)
    env = [options(t["words"], "-e") for t in tasks]
    assert [(e["RANK"], e["LOCAL_RANK"]) for e in env] == [(str(i), str(i % 4)) for i in range(8)]
    assert {"--network=host", "--ipc=host", "--nccl-cu12"} <= set(tasks[0]["words"])
    tasks = cluster.run(
        script("perlmutter", nodes=2, launcher="torchrun"),
        **{**many, "SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "1"},
    )
    where = [t["words"].index("torchrun") for t in tasks]
    assert [t["words"][w : w + 7] for t, w in zip(tasks, where, strict=True)] == [
        [
            "torchrun",
            "--nnodes=2",
            "--nproc-per-node=4",
            f"--node-rank={i}",
            "--master-addr=node-a",
            f"--master-port={tasks[0]['env']['MASTER_PORT']}",
            "--no-python",
        ]
        for i in range(2)
    ]


def test_master_port_on_shared_nodes(cluster: Cluster) -> None:
    """Jobs on one node at the same time have different ports, none of which another program has."""
    (task,) = cluster.run(script("alliance-fir"))
    first = int(inside(task["words"])["MASTER_PORT"])
    assert 29500 <= first < 31500 and first % 2 == 0
    # ``during`` runs a second job, whose number differs by 1000, within the first.
    during = cluster.root / "bin" / "during"
    second = cluster.root / "second.sh"
    second.write_text(script("alliance-fir"))
    during.write_text(f'#!/bin/bash\nSLURM_JOB_ID=5711 bash {second}\nexec "$@"\n')
    during.chmod(0o755)
    tasks = cluster.run(script("alliance-fir").replace("exec apptainer", "exec during apptainer"))
    ports = [int(inside(task["words"])["MASTER_PORT"]) for task in tasks]
    # other tests may have jobs on this machine meanwhile
    assert len(set(ports)) == 2 and all(29500 <= port < 31500 for port in ports)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first))
        taken.listen()
        (task,) = cluster.run(script("alliance-fir"))
        assert int(inside(task["words"])["MASTER_PORT"]) != first


def test_data(cluster: Cluster) -> None:
    """The data is unpacked into a folder that the container sees, and removed."""
    (cluster.root / "submit" / "a").write_text("x")
    with tarfile.open(cluster.root / "submit" / "my set.tar.gz", "w:gz") as tar:
        tar.add(cluster.root / "submit" / "a", "a")
    (task,) = cluster.run(script("alliance-fir", data="my set.tar.gz"))
    place = inside(task["words"])["BUILDER_DATA"]
    assert task["data"] == ["a"] and place == f"{cluster.root}/node/data"
    assert f'type=bind,"source={place}","destination={place}"' in task["words"]
    assert Path(place).exists(), "Slurm removes its own folder"
    (task,) = cluster.run(script("perlmutter", data="my set.tar.gz", gpus=4))
    place = options(task["words"], "-e")["BUILDER_DATA"]
    assert task["data"] == ["a"] and place == f"/tmp/{cluster.env['USER']}-4711/data"
    assert f"{place}:{place}" in task["words"] and not Path(place).exists()
    cluster.run(script("alliance-fir", data="nowhere.tar"), code=2)
    assert "nowhere.tar" in cluster.output


def test_no_image(cluster: Cluster) -> None:
    """Without its image a job does not start, and says how to download it."""
    (cluster.root / "images" / "alliance-fir.sif").unlink()
    assert cluster.run(script("alliance-fir"), code=1) == []
    assert "alliance-fir.sif: download it with builder pull alliance-fir" in cluster.output


def test_chain(cluster: Cluster) -> None:
    """A segment resumes from the newest checkpoint; after a successful segment the others do nothing."""
    chain = script("alliance-fir", chain=3, checkpoint="my run")
    folder = cluster.root / "submit" / "my run"
    array = {"SLURM_ARRAY_JOB_ID": "900", "SLURM_ARRAY_TASK_ID": "1"}

    def resumed(task: dict[str, Any]) -> str:
        env = inside(task["words"])
        assert env["BUILDER_CHECKPOINT_DIR"] == str(folder)
        assert f'type=bind,"source={folder}","destination={folder}"' in task["words"]
        return env["BUILDER_RESUME"]

    (task,) = cluster.run(chain, code=9, FAIL="9", **array)
    assert resumed(task) == "" and "starting from the beginning" in cluster.output
    now = time.time()
    for name, age in (("b 2.pt", 10), ("a.pt", 100), ("c.txt", 1), ("half.pt", 0)):
        (folder / name).write_text("" if name == "half.pt" else "x")
        os.utime(folder / name, (now - age, now - age))
    (task,) = cluster.run(chain, code=9, FAIL="9", **array)
    assert resumed(task) == f"{folder}/b 2.pt", "an empty file is not a checkpoint"
    (task,) = cluster.run(chain, **array)
    assert cluster.run(chain, **array) == []
    assert "an earlier segment has finished the training" in cluster.output
    assert len(cluster.run(chain, **{**array, "SLURM_ARRAY_JOB_ID": "901"})) == 1, (
        "another chain continues the training"
    )
    (task,) = cluster.run(script("alliance-fir", checkpoint="my run"))
    assert resumed(task) == f"{folder}/b 2.pt", "a single job resumes too"


def test_credentials(cluster: Cluster) -> None:
    """Credentials come from the submitting shell and are not in the script."""
    text = script("alliance-fir", env={"TOKEN": None, "X": "a=b,c"})
    (task,) = cluster.run(text, MLFLOW_TRACKING_PASSWORD="s3cret", TOKEN="t0ken")
    assert task["env"]["APPTAINERENV_MLFLOW_TRACKING_PASSWORD"] == "s3cret"
    assert task["env"]["APPTAINERENV_TOKEN"] == "t0ken"
    assert not any("s3cret" in w or "t0ken" in w for w in task["words"])
    assert inside(task["words"])["X"] == "a=b,c", "apptainer's own option reads it as CSV"
    of_job = {"MLFLOW_TRACKING_URI": "http://x", "NCCL_DEBUG": "WARN", "CUDA_VISIBLE_DEVICES": "3"}
    (task,) = cluster.run(script("perlmutter", env={"TOKEN": None}), **of_job)
    names = [task["words"][i + 1] for i, w in enumerate(task["words"]) if w == "-e"]
    assert {*of_job, "SLURM_JOB_ID", "TOKEN"} <= set(names)


def test_evaluated_values(cluster: Cluster) -> None:
    """Values are escaped for a runtime that evaluates them like a shell."""
    image = cluster.root / "a.sif"
    image.touch()
    odd = "a\\b $HOME `id`"
    (task,) = cluster.run(script("leonardo", image=str(image), env={"ODD": odd}), NCCL_ODD=odd)
    escaped = "a\\\\b \\$HOME \\`id\\`"
    assert task["env"]["SINGULARITYENV_NCCL_ODD"] == escaped and inside(task["words"])["ODD"] == odd
    (task,) = cluster.run(script("alliance-fir", env={"ODD": odd}), NCCL_ODD=odd)
    assert task["env"]["APPTAINERENV_NCCL_ODD"] == odd and inside(task["words"])["ODD"] == odd, "--no-eval"


def test_image_of_podman_hpc(cluster: Cluster) -> None:
    """A tag is pulled again; what all nodes see runs by its id, and its digest is printed."""
    name = "registry.nersc.gov/m558/superfacility/synapse-ml:latest"
    text = script("perlmutter", nodes=2)
    for image, code in (("", "0"), ("pull", "0"), ("", "125")):
        first, *_ = cluster.run(text, SLURM_NTASKS="2", IMAGE=image, PULL=code)
        assert cluster.pulled.read_text() == f"pull {name}"
        assert first["words"][first["words"].index("python") - 1] == "cafe"
        assert cluster.output.count(f"image: {name}, sha256:feed\n") == 1
        assert ("was not pulled: looking for" in cluster.output) == (code == "125")
    for env in ({"IMAGE": "local"}, {"IMAGE": "none", "PULL": "125"}):
        assert cluster.run(text, code=1, **env) == [], "not migrated, or not pulled"
        assert f"no image {name}; on a login node: podman-hpc pull {name}" in cluster.output


def test_pinned_image_of_podman_hpc(cluster: Cluster) -> None:
    """It is pulled only if it is missing. It is found by its id, under whatever name."""
    for image_id, image, pulled in (("sha256:cafe", "", False), ("sha256:beef", "", True), ("", "", False)):
        pinned = script("perlmutter", image="h.example/a@sha256:feed", image_id=image_id)
        cluster.run(pinned, IMAGE=image)
        assert cluster.pulled.exists() == pulled
        assert "image: h.example/a@sha256:feed, sha256:feed" in cluster.output


def test_image_of_docker(cluster: Cluster) -> None:
    """A tag is pulled again, and runs by its digest; a digest is pulled if it is missing."""
    image = "h.example/a:latest"
    text = script("chameleon-a100", image=image)
    for code in ("0", "1"):
        (first,) = cluster.run(text, PULL=code)
        assert cluster.pulled.read_text() == f"pull {image}" and "h.example/a@sha256:feed" in first["words"]
        assert ("h.example/a:latest was not pulled" in cluster.output) == (code == "1")
        assert f"image: {image}, h.example/a@sha256:feed sha256:cafe\n" in cluster.output
    assert cluster.run(text, code=1, IMAGE="none", PULL="1") == []
    assert f"no image {image}; docker pull {image}\n" in cluster.output
    for stored, pulled in (("", False), ("pull", True)):
        cluster.run(script("chameleon-a100", image="h.example/a@sha256:feed"), IMAGE=stored)
        assert cluster.pulled.exists() == pulled


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ("h.example/a@sha256:feed h.example/a@sha256:beef ", "h.example/a@sha256:feed"),
        ("xh.example/a@sha256:0 h-example/a@sha256:1 h.example/a@sha256:feed ", "h.example/a@sha256:feed"),
        ("h.example/ab@sha256:0 ", "h.example/a:latest"),
        ("", "h.example/a:latest"),
    ],
)
def test_digest_of_docker(cluster: Cluster, found: str, expected: str) -> None:
    """The job runs one digest of its repository, if the engine knows several of them, or others."""
    (first,) = cluster.run(script("chameleon-a100", image="h.example/a:latest"), FOUND=f"{found}sha256:cafe")
    assert expected in first["words"]


@pytest.mark.parametrize("image", [None, "mine:latest", "localhost/mine:latest"])
def test_local_image_of_docker(image: str | None, cluster: Cluster) -> None:
    """A name of this machine, which anybody can take in Docker Hub, is not pulled if it is there."""
    text = script("chameleon-a100", **({"image": image} if image else {}))
    cluster.run(text)
    assert not cluster.pulled.exists()
    if image is None:
        assert cluster.run(text, code=1, IMAGE="pull") == []
        assert (
            "no image builder/chameleon-a100:latest; builder build chameleon-a100 --load docker\n"
            in cluster.output
        )
        assert not cluster.pulled.exists()


def test_optional_devices(cluster: Cluster) -> None:
    """Only devices that the node has are passed."""
    text = script("perlmutter", nodes=2)
    (first, *_) = cluster.run(text)
    assert not any(word.startswith("--device") for word in first["words"])
    (first, *_) = cluster.run(text.replace("/dev/cxi_sbl", "/dev/null"))
    assert "--device=/dev/null" in first["words"][: first["words"].index("cafe")]


@pytest.mark.parametrize("planted", ["link", "file", "none"])
def test_port_locks_of_somebody_else(cluster: Cluster, planted: str) -> None:
    """What others put in the shared /tmp is not written to, and the job gets its port without a lock."""
    shared, target = cluster.root / "shared", cluster.root / "target"
    locks = shared / "locks" if planted != "none" else Path("/proc/full")
    shared.mkdir()
    shared.chmod(0o1777)
    text = script("alliance-fir").replace("/tmp/builder-ports-$(id -u)", str(locks))
    if planted != "none":
        target.mkdir()
        for port in range(29500, 31500, 2):
            (target / str(port)).write_text("precious")
        locks.symlink_to(target) if planted == "link" else locks.write_text("")
    (task,) = cluster.run(text)
    assert inside(task["words"])["MASTER_PORT"]
    assert all(path.read_text() == "precious" for path in target.glob("*"))
