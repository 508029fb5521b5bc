"""What Triton's interpreter leaves to numpy where a GPU would do it in a fixed order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest


def add_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the products of tiles add their inputs in order, whatever row of a tile it is.

    The interpreter takes BLAS, whose sums depend on where in a matrix a row is; an instruction of a
    GPU treats all rows of a tile alike.
    """

    def matmul(left: Any, right: Any, dtype: Any) -> Any:
        products = left.astype(dtype)[:, :, None] * right.astype(dtype)[None, :, :]
        return np.add.reduce(products, axis=1)

    monkeypatch.setattr(np, "matmul", matmul)
