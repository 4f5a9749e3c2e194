"""The list of all measurements, in the order in which they run and in which the report shows them.

A measurement returns its fields, with units in their names, and raises ``fail``, ``warn`` or ``skip``
otherwise. It checks its result: a wrong result is a failure, however fast it was. docs/smoke.md explains
every one of them.
"""

from __future__ import annotations

from functools import partial

from ..core import Measurement
from . import allreduce, checkpoint, dataloader, layers, matmul, memory, start, training

MEASUREMENTS: list[Measurement] = [
    Measurement("torch.import_time", start.measure_import, "once"),
    Measurement("torch.first_kernel", start.measure_first_kernel, "once"),
    Measurement("training", training.measure_training),
    Measurement("matmul.fp32", partial(matmul.measure_matmul, precision="fp32")),
    Measurement("matmul.tf32", partial(matmul.measure_matmul, precision="tf32"), only="gpu"),
    Measurement("matmul.fp16", partial(matmul.measure_matmul, precision="fp16"), only="gpu"),
    Measurement("matmul.bf16", partial(matmul.measure_matmul, precision="bf16")),
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
    Measurement("allreduce.node", partial(allreduce.measure_all_reduce, where="node"), "all"),
    Measurement("allreduce.network", partial(allreduce.measure_all_reduce, where="network"), "all"),
]
