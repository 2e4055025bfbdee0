"""`Ragged`: a batch of rows of different lengths, without padding."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from penstock.arguments import whole_number
from penstock.errors import BatchError
from penstock.native import native


class Ragged:
    """Rows of different lengths: their values one after the other, and where each row begins.

    It has a length, is indexed like a tensor (a number gives a row, anything else a `Ragged`),
    moves with ``to`` and ``pin_memory``, and can be pickled.

    Args:
        values: The values of all rows along the first axis.
        offsets: Where each row begins, and the end of the last row: int64, one more than rows.

    >>> words = Ragged(torch.tensor([7, 8, 9]), torch.tensor([0, 2, 2, 3]))
    >>> words.tolist(), words.lengths.tolist(), words[2].tolist()
    ([[7, 8], [], [9]], [2, 0, 1], [9])
    >>> words.padded(value=-1, multiple_of=4).tolist()
    [[7, 8, -1, -1], [-1, -1, -1, -1], [9, -1, -1, -1]]
    """

    __slots__ = ("offsets", "values")

    def __init__(
        self, values: torch.Tensor | npt.ArrayLike, offsets: torch.Tensor | npt.ArrayLike
    ) -> None:
        try:
            self.values = _tensor(values)
            self.offsets = torch.as_tensor(offsets, dtype=torch.int64, device=self.values.device)
        except (TypeError, ValueError, RuntimeError) as error:
            raise BatchError(f"values and offsets must be tensors or arrays: {error}") from error
        if self.values.ndim == 0 or self.offsets.ndim != 1 or len(self.offsets) == 0:
            raise BatchError(
                "values must have at least one axis, and offsets one number per row plus one, "
                f"got shapes {tuple(self.values.shape)} and {tuple(self.offsets.shape)}"
            )
        if self.offsets.device.type == "cpu":  # elsewhere the check would wait for the device
            ends = int(self.offsets[0]), int(self.offsets[-1])
            if ends != (0, len(self.values)) or bool((self.offsets.diff() < 0).any()):
                raise BatchError(
                    f"offsets must not decrease and go from 0 to {len(self.values)}, the number "
                    f"of values, got {ends[0]} to {ends[1]}"
                )

    @classmethod
    def from_rows(cls, rows: Sequence[Any]) -> Ragged:
        """Return rows (tensors, arrays or lists of numbers) as one `Ragged`.

        Args:
            rows: At least one row.

        >>> Ragged.from_rows([[1, 2], [3]]).offsets.tolist()
        [0, 2, 3]
        """
        tensors = [_tensor(row) for row in rows]
        if not tensors:
            raise BatchError("from_rows needs at least one row, got none")
        ends = np.cumsum([0, *map(len, tensors)])
        filled = [row for row in tensors if len(row)]  # an empty list has another dtype
        return cls(torch.cat(filled or tensors[:1]), torch.from_numpy(ends))

    @property
    def lengths(self) -> torch.Tensor:
        """The length of each row."""
        return self.offsets.diff()

    @property
    def device(self) -> torch.device:
        """Where the values are."""
        return self.values.device

    @property
    def layout(self) -> torch.layout:
        """The layout of the values."""
        return self.values.layout

    @property
    def dtype(self) -> torch.dtype:
        """The type of the values."""
        return self.values.dtype

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (self[row] for row in range(len(self)))

    def __getitem__(self, rows: Any) -> Any:
        if isinstance(rows, torch.Tensor) and rows.ndim == 0 and rows.dtype != torch.bool:
            rows = rows.item()
        if isinstance(rows, int | np.integer) and not isinstance(rows, bool):
            row = int(rows) + len(self) if rows < 0 else int(rows)
            if not 0 <= row < len(self):
                raise IndexError(f"row {int(rows)} is out of range for {len(self)} rows")
            return self.values[int(self.offsets[row]) : int(self.offsets[row + 1])]
        starts, lengths = self.offsets[:-1][rows], self.lengths[rows]
        ends = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        shifts = torch.repeat_interleave(starts - ends[:-1], lengths)
        chosen = torch.arange(len(shifts), device=self.device) + shifts
        return Ragged(self.values[chosen], ends)

    def __repr__(self) -> str:
        return f"Ragged({len(self)} rows, {len(self.values):,} values of {self.dtype})"

    def __reduce__(self) -> tuple[type[Ragged], tuple[torch.Tensor, torch.Tensor]]:
        return Ragged, (self.values, self.offsets)

    def padded(self, value: float = 0, multiple_of: int = 1) -> torch.Tensor:
        """Return the rows as one tensor, padded at their ends.

        Args:
            value: The padding after the end of a row; the dtype of the values must represent it.
            multiple_of: The width is a multiple of this number.
        """
        try:
            filled = self.values.new_full((), value).item()
        except (RuntimeError, TypeError):  # NaN among integers, or no number
            filled = None
        # torch rounds a float among integers, and wraps around what is out of range
        rounds = self.dtype.is_floating_point or self.dtype.is_complex
        if filled is None or not (rounds or filled == value):
            raise BatchError(f"value={value!r} cannot be padding among values of {self.dtype}")
        multiple = whole_number("multiple_of", multiple_of, minimum=1)
        width = -(-int(self.lengths.max() if len(self) else 0) // multiple) * multiple
        out = self.values.new_full((len(self), width, *self.values.shape[1:]), value)
        out[torch.arange(width, device=self.device) < self.lengths[:, None]] = self.values
        return out

    def nested(self) -> torch.Tensor:
        """Return the rows as a nested tensor of torch with the jagged layout."""
        return torch.nested.nested_tensor_from_jagged(self.values, self.offsets)

    def tolist(self) -> list[list[Any]]:
        """Return the rows as lists."""
        values, offsets = self.values.tolist(), self.offsets.tolist()
        return [values[a:b] for a, b in pairwise(offsets)]

    def strings(self, encoding: str = "utf-8") -> list[str]:
        """Return rows of bytes (uint8) as strings.

        Args:
            encoding: How the strings were encoded.

        >>> Ragged(np.frombuffer(b"abc", "u1").copy(), [0, 1, 3]).strings()
        ['a', 'bc']
        """
        if self.dtype != torch.uint8 or self.values.ndim != 1:
            raise BatchError(f"strings() needs rows of bytes (uint8), got rows of {self.dtype}")
        text, offsets = self.values.cpu().numpy().tobytes(), self.offsets.tolist()
        try:
            return [text[a:b].decode(encoding) for a, b in pairwise(offsets)]
        except (UnicodeDecodeError, LookupError) as error:
            raise BatchError(f"the bytes of a row are not text: {error}") from error

    def to(self, *args: Any, **kwargs: Any) -> Ragged:
        """Return the rows on another device or in another dtype, as ``torch.Tensor.to`` does."""
        values = self.values.to(*args, **kwargs)
        waits = not kwargs.get("non_blocking", False)
        return Ragged(values, self.offsets.to(values.device, non_blocking=not waits))

    def pin_memory(self, device: torch.device | str | None = None) -> Ragged:
        """Return the rows in page-locked memory; torch's pinning calls this.

        Args:
            device: The device whose driver locks the memory; None for the current accelerator.
        """
        arguments = () if device is None else (device,)
        return Ragged(self.values.pin_memory(*arguments), self.offsets.pin_memory(*arguments))

    def is_pinned(self) -> bool:
        """Return whether the values are in page-locked memory."""
        return self.values.is_pinned()


def _tensor(values: Any) -> torch.Tensor:
    if isinstance(values, np.ndarray) and not values.flags.writeable:
        values = values.copy()  # torch has no tensors that are read-only
    return torch.as_tensor(values)


def csr_tensor(
    values: torch.Tensor, columns: torch.Tensor, offsets: torch.Tensor, width: int
) -> torch.Tensor:
    """Return a matrix in torch's CSR layout; its columns are not checked.

    Args:
        values: The stored values of all rows.
        columns: The column of each value.
        offsets: Where the values of each row begin, and the end of the last row.
        width: The number of columns.

    >>> values, columns = torch.tensor([5.0]), torch.tensor([2])
    >>> csr_tensor(values, columns, torch.tensor([0, 1, 1]), 3).to_dense().tolist()
    [[0.0, 0.0, 5.0], [0.0, 0.0, 0.0]]
    """
    _warn_no_more()
    # torch's kernels take one integer type for columns and offsets
    index = columns if columns.dtype == torch.int64 else columns.to(torch.int32)
    return torch.sparse_csr_tensor(
        offsets.to(index.dtype), index, values, (len(offsets) - 1, width), check_invariants=False
    )


@cache
def _warn_no_more() -> None:
    """Trigger torch's once-per-process warning that CSR is in beta, and suppress it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.sparse_csr_tensor([0, 0], [], [], (1, 1), check_invariants=False)


def dense_tensor(
    values: torch.Tensor,
    columns: torch.Tensor,
    offsets: torch.Tensor,
    width: int,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return a dense matrix of rows in CSR layout.

    Args:
        values: The stored values of all rows.
        columns: The column of each value.
        offsets: Where the values of each row begin, and the end of the last row.
        width: The number of columns.
        out: Memory for the matrix.
    """
    rows = len(offsets) - 1
    matrix = values.new_empty((rows, width)) if out is None else out
    numbers = values.dtype in (torch.float32, torch.float64)
    numbers &= columns.dtype in (torch.int32, torch.int64) and matrix.is_contiguous()
    compiled = None if native is None else native.dense_rows
    if compiled is not None and numbers and values.device.type == "cpu":
        ends = offsets.numpy()
        lengths = np.diff(ends)
        begins = [each.data_ptr() + ends[:-1] * each.itemsize for each in (values, columns)]
        compiled(
            matrix.data_ptr(), values.itemsize, begins[0].ctypes.data, begins[1].ctypes.data,
            columns.itemsize, lengths.ctypes.data, rows, width,
        )  # fmt: skip
        return matrix
    matrix.zero_()
    firsts = torch.arange(rows, device=values.device) * width
    places = torch.repeat_interleave(firsts, offsets.diff(), output_size=len(values))
    places += columns
    # added, not assigned: a column that occurs twice in a row gets the sum, as in scipy
    matrix.view(-1).scatter_add_(0, places, values)
    return matrix
