"""A thousand handwritten digits, for the training."""

from __future__ import annotations

import pkgutil
import zlib
from typing import Any

_COUNT = 1000


def handwritten_digits(torch: Any) -> tuple[Any, Any]:
    """Images as a tensor (1000, 1, 8, 8) with values from 0 to 1, and their labels.

    ``digits.bin`` holds the first 1000 of scikit-learn's digits (UCI's "Optical Recognition of Handwritten
    Digits", E. Alpaydin and C. Kaynak, 1998, CC BY 4.0): images of 8x8 pixels with values from 0 to 4, row by
    row, then all labels, one byte each, compressed by zlib.
    """
    numbers = torch.tensor(list(packed_digits()), dtype=torch.float32)
    return numbers[:-_COUNT].reshape(-1, 1, 8, 8) / 4, numbers[-_COUNT:].long()


def packed_digits() -> bytes:
    """All images and labels as bytes, in the order that ``handwritten_digits`` explains."""
    packed = pkgutil.get_data(__package__, "digits.bin")
    assert packed is not None
    return zlib.decompress(packed)
