"""The list of all measurements, in the order in which they run and in which the report shows them.

A measurement returns its fields, with units in their names, and raises ``fail``, ``warn`` or
``skip`` otherwise. It checks its result: a wrong result is a failure, however fast it was.
docs/smoke.md explains every one of them.
"""

from __future__ import annotations

from functools import partial

from ..core import ANY, Measurement
from . import command, imports, layers, product
from .collectives import measure_all_reduce
from .matmul import measure_matmul
from .memory import measure_copy, measure_transfer, measure_triad

#: First what is graded: if time is short, the rest is left out. What rank 0 alone measures ("once") comes
#: last, so that the ranks of all GPUs measure at the same time.
MEASUREMENTS: list[Measurement] = [
    Measurement("matmul.bf16", partial(measure_matmul, precision="bf16")),
    Measurement("matmul.fp16", partial(measure_matmul, precision="fp16"), only="gpu"),
    Measurement("memory.copy", measure_copy),
    Measurement("memory.triad", measure_triad),
    Measurement("transfer.h2d_pinned", partial(measure_transfer, to_gpu=True), "turn", "gpu"),
    Measurement("transfer.d2h_pinned", partial(measure_transfer, to_gpu=False), "turn", "gpu"),
    Measurement("attention", layers.measure_attention),
    Measurement("matmul.fp32", partial(measure_matmul, precision="fp32")),
    Measurement("matmul.tf32", partial(measure_matmul, precision="tf32"), only="gpu"),
    Measurement("matmul.fp8", partial(measure_matmul, precision="fp8"), only="gpu"),
    Measurement("matmul.fp64", partial(measure_matmul, precision="fp64"), only="gpu"),
    Measurement("conv.training", layers.measure_convolutions),
    Measurement("product", product.measure_product, of=("tensorflow", "jax")),
    Measurement("torch.import_time", imports.measure_torch, "once"),
    Measurement("imports", imports.measure_imports, "once", of=ANY, always=True),
    Measurement("command", command.measure_command, "once", of=ANY, always=True),
    # The group of all ranks first: a second process group hangs with some versions of RCCL.
    Measurement("allreduce.network", partial(measure_all_reduce, where="network"), "all"),
    Measurement("allreduce.node", partial(measure_all_reduce, where="node"), "all"),
]
