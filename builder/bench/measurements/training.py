"""A small network learns to read handwritten digits."""

from __future__ import annotations

import math
import time
from typing import Any

from ..core import Item, Run, fail
from . import products
from .accuracy import checked, require, wrong_results
from .digits import handwritten_digits
from .timing import spread

#: Reached accuracies are from 0.93 to 0.97, by seed and rounding.
ACCURACY = 0.9
STEPS = 200
BATCH = 64
#: Digits that are not trained on.
TESTED = 200
#: Steps at the beginning that do not count.
WARM_UP = 10


def measure_training(run: Run) -> Item:
    """Time of a training step of a small convolutional network, from a fixed seed, to a given accuracy.

    TensorFlow and JAX train a dense network.
    """
    if run.framework is not None:
        return products.measure_training(run)
    torch = run.need_torch
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the network is so small that more threads would only wait for each other
    try:
        return _train(run)
    finally:
        torch.set_num_threads(threads)


def _train(run: Run) -> Item:
    torch, device = run.torch, run.device
    images, labels = (tensor.to(device) for tensor in handwritten_digits(torch))
    torch.manual_seed(7)
    model = _network(torch).to(device)
    losses, milliseconds = _steps(run, model, images[:-TESTED], labels[:-TESTED])
    run.excuse(1e-3 * milliseconds[0])

    with torch.no_grad():
        right = model(images[-TESTED:]).argmax(1) == labels[-TESTED:]
        accuracy = float(right.float().mean().item())
    fields: Item = {
        "device": device,
        "first_step_ms": milliseconds[0],
        "first_loss": losses[0],
        "last_loss": losses[-1],
    }
    check = checked("accuracy on digits not trained on", accuracy, ACCURACY, accuracy >= ACCURACY)
    seen = f"accuracy {accuracy:.3f} after {STEPS} steps; at least {ACCURACY:g} is expected"
    require(check, seen, "the training does not converge: " + wrong_results(), **fields)
    return {**spread("ms", milliseconds[WARM_UP:]), "better": "lower", **fields, **check}


def _network(torch: Any) -> Any:
    nn = torch.nn
    features = (nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    return nn.Sequential(*features, nn.Linear(16 * 4 * 4, 64), nn.ReLU(), nn.Linear(64, 10))


def _steps(run: Run, model: Any, images: Any, labels: Any) -> tuple[list[float], list[float]]:
    """The loss and the milliseconds of each step."""
    torch = run.torch
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    losses: list[float] = []
    milliseconds: list[float] = []
    for step in range(STEPS):
        batch = torch.arange(step * BATCH, (step + 1) * BATCH, device=run.device) % len(images)
        started = time.perf_counter()
        loss = torch.nn.functional.cross_entropy(model(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.item()))  # waits for the device
        milliseconds.append(1e3 * (time.perf_counter() - started))
        if not math.isfinite(losses[-1]):
            raise fail(
                f"the loss is {losses[-1]} at step {step}", wrong_results(), device=run.device, step=step
            )
    return losses, milliseconds
