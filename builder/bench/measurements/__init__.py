"""The list of all measurements, in the order in which they run and in which the report shows them.

A measurement returns its fields, with units in their names, and raises ``fail``, ``warn`` or ``skip``
otherwise. It checks its result: a wrong result is a failure, however fast it was. docs/smoke.md explains
every one of them.
"""

from __future__ import annotations

from functools import partial

from ..core import ANY, FRAMEWORKS, Measurement
from . import allreduce, checkpoint, command, dataloader, imports, layers, matmul, memory, start, training

MEASUREMENTS: list[Measurement] = [
    Measurement("torch.import_time", start.measure_import, "once"),
    Measurement("torch.first_kernel", start.measure_first_kernel, "once"),
    Measurement("tensorflow.import_time", start.measure_import, "once", of=("tensorflow",)),
    Measurement("tensorflow.first_kernel", start.measure_first_kernel, "once", of=("tensorflow",)),
    Measurement("jax.import_time", start.measure_import, "once", of=("jax",)),
    Measurement("jax.first_kernel", start.measure_first_kernel, "once", of=("jax",)),
    Measurement("python.start", start.measure_python, "once", of=("none",)),
    Measurement("training", training.measure_training, of=FRAMEWORKS),
    Measurement("matmul.fp32", partial(matmul.measure_matmul, precision="fp32"), of=FRAMEWORKS),
    Measurement("matmul.tf32", partial(matmul.measure_matmul, precision="tf32"), only="gpu"),
    Measurement("matmul.fp16", partial(matmul.measure_matmul, precision="fp16"), only="gpu"),
    Measurement("matmul.bf16", partial(matmul.measure_matmul, precision="bf16"), of=FRAMEWORKS),
    Measurement("cpu.peak", matmul.measure_peak, only="cpu"),
    Measurement("conv.training", layers.measure_convolutions),
    Measurement("attention", layers.measure_attention),
    Measurement("memory.copy", memory.measure_copy),
    Measurement("memory.triad", memory.measure_triad),
    Measurement("transfer.h2d_pinned", partial(memory.measure_to_gpu, pinned=True), only="gpu"),
    Measurement("transfer.h2d_pageable", partial(memory.measure_to_gpu, pinned=False), only="gpu"),
    Measurement("transfer.d2h_pinned", partial(memory.measure_from_gpu, pinned=True), only="gpu"),
    Measurement("transfer.d2h_pageable", partial(memory.measure_from_gpu, pinned=False), only="gpu"),
    Measurement("dataloader", dataloader.measure_loader, "once"),
    Measurement("checkpoint.write", checkpoint.measure_write, "once"),
    Measurement("checkpoint.read", checkpoint.measure_read, "once"),
    Measurement("imports", imports.measure_imports, "once", of=ANY, always=True),
    Measurement("command", command.measure_command, "once", of=ANY, always=True),
    Measurement("allreduce.node", partial(allreduce.measure_all_reduce, where="node"), "all"),
    Measurement("allreduce.network", partial(allreduce.measure_all_reduce, where="network"), "all"),
]
