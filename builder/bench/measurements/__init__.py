"""The list of all measurements, in the order in which they run and in which the report shows them.

A measurement returns its fields, with units in their names, and raises ``fail``, ``warn`` or ``skip``
otherwise. It checks its result: a wrong result is a failure, however fast it was. docs/smoke.md explains
every one of them.
"""

from __future__ import annotations

from functools import partial

from ..core import ANY, FRAMEWORKS, Measurement
from . import (
    again,
    checkpoint,
    collectives,
    command,
    dataloader,
    imports,
    launch,
    layers,
    matmul,
    memory,
    p2p,
    start,
    training,
)

_collective = collectives.measure_collective

#: First what is graded: if time is short, the rest is left out. What rank 0 alone measures ("once") comes
#: last, so that the ranks of all GPUs measure at the same time.
MEASUREMENTS: list[Measurement] = [
    Measurement("matmul.bf16", partial(matmul.measure_matmul, precision="bf16"), of=FRAMEWORKS),
    Measurement("matmul.fp16", partial(matmul.measure_matmul, precision="fp16"), only="gpu"),
    Measurement("memory.copy", memory.measure_copy),
    Measurement("memory.triad", memory.measure_triad),
    Measurement("transfer.h2d_pinned", partial(memory.measure_to_gpu, pinned=True), "turn", "gpu"),
    Measurement("transfer.h2d_pageable", partial(memory.measure_to_gpu, pinned=False), "turn", "gpu"),
    Measurement("transfer.d2h_pinned", partial(memory.measure_from_gpu, pinned=True), "turn", "gpu"),
    Measurement("transfer.d2h_pageable", partial(memory.measure_from_gpu, pinned=False), "turn", "gpu"),
    Measurement("peer.copy", p2p.measure_pairs, "turn on node", "gpu"),
    Measurement("attention", layers.measure_attention),
    Measurement("matmul.fp32", partial(matmul.measure_matmul, precision="fp32"), of=FRAMEWORKS),
    Measurement("cpu.peak", matmul.measure_peak, only="cpu"),
    Measurement("matmul.tf32", partial(matmul.measure_matmul, precision="tf32"), only="gpu"),
    Measurement("matmul.fp8", partial(matmul.measure_matmul, precision="fp8"), only="gpu"),
    Measurement("matmul.fp64", partial(matmul.measure_matmul, precision="fp64"), only="gpu"),
    Measurement("launch", launch.measure_launch, only="gpu"),
    Measurement("conv.training", layers.measure_convolutions),
    Measurement("conv.first_kernel", layers.measure_first_convolution, only="gpu"),
    Measurement("training", training.measure_training, of=FRAMEWORKS),
    Measurement("again.matmul", again.measure_product_again, only="cpu", always=True),
    Measurement("again.copy", again.measure_copy_again, only="cpu", always=True),
    Measurement("torch.import_time", start.measure_import, "once"),
    Measurement("torch.first_kernel", start.measure_first_kernel, "once"),
    Measurement("tensorflow.import_time", start.measure_import, "once", of=("tensorflow",)),
    Measurement("tensorflow.first_kernel", start.measure_first_kernel, "once", of=("tensorflow",)),
    Measurement("jax.import_time", start.measure_import, "once", of=("jax",)),
    Measurement("jax.first_kernel", start.measure_first_kernel, "once", of=("jax",)),
    Measurement("python.start", start.measure_python, "once", of=("none",)),
    Measurement("dataloader", dataloader.measure_loader, "once"),
    Measurement("checkpoint.write", checkpoint.measure_write, "once"),
    Measurement("checkpoint.read", checkpoint.measure_read, "once"),
    Measurement("imports", imports.measure_imports, "once", of=ANY, always=True),
    Measurement("command", command.measure_command, "once", of=ANY, always=True),
    # The group of all ranks first: a second process group hangs with some versions of RCCL.
    Measurement("allreduce.network", partial(_collective, name="allreduce", where="network"), "all"),
    Measurement("allreduce.node", partial(_collective, name="allreduce", where="node"), "all"),
    Measurement("allgather.node", partial(_collective, name="allgather", where="node"), "all", "gpu"),
    Measurement("reducescatter.node", partial(_collective, name="reducescatter", where="node"), "all", "gpu"),
]
