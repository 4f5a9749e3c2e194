"""Fits a line, one process per GPU, and resumes from the newest checkpoint after an interruption."""

import os
from pathlib import Path

import torch
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel

EPOCHS = 20
rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
if torch.cuda.is_available():
    visible, local = torch.cuda.device_count(), int(os.environ.get("LOCAL_RANK", 0))
    device = torch.device("cuda", local if visible > 1 else 0)
    torch.cuda.set_device(device)
else:
    device = torch.device("cpu")
if ranks > 1:
    init_process_group("nccl" if device.type == "cuda" else "gloo")

torch.manual_seed(rank)
points = torch.rand(1000, 1, device=device)
values = 3 * points + 1
torch.manual_seed(0)
model = torch.nn.Linear(1, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

# builder job sets both variables; the newest checkpoint is empty at the first start.
folder = Path(os.environ.get("BUILDER_CHECKPOINT_DIR", "checkpoints"))
first = 0
if newest := os.environ.get("BUILDER_RESUME"):
    state = torch.load(newest, map_location=device)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    first = state["epoch"] + 1

trained = DistributedDataParallel(model) if ranks > 1 else model
for epoch in range(first, EPOCHS):
    for _ in range(10):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(trained(points), values)
        loss.backward()
        optimizer.step()
    if rank == 0:
        print(f"epoch {epoch}: loss {loss.item():.6f} on {device}", flush=True)
        folder.mkdir(parents=True, exist_ok=True)
        state = {"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
        part = folder / f"line-{epoch:04}.pt.part"
        torch.save(state, part)
        part.rename(part.with_suffix(""))  # a checkpoint is whole, or it is not there
if ranks > 1:
    destroy_process_group()
