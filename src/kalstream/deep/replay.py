"""Replay: a memory of recent rows, and streams over all past chunks.

A learner draws from its replay before it trains on a chunk (`Training.inputs`), and adds the chunk
after it has learned it (`Learner._count`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kalstream.errors import InvalidInput

Pair = tuple[Tensor, Tensor]  # rows and labels of a chunk


def check_images(rows: Tensor) -> None:
    """Refuse rows that cannot be mirrored."""
    if rows.ndim != 4:
        raise InvalidInput(
            f"flip=True mirrors images (b, c, h, w), got rows {tuple(rows.shape)}; use flip=False, "
            "or a preprocess that returns images"
        )


def draw_moves(n: int, flip: bool, shift: int, generator: torch.Generator) -> Tensor:
    """How n images are moved, (n, 3): whether mirrored, and by how many pixels down and right."""
    flips = (torch.rand(n, generator=generator) < 0.5) if flip else torch.zeros(n)
    most = torch.zeros(n, 2, dtype=torch.int64)
    if shift:
        most = torch.randint(-shift, shift + 1, (n, 2), generator=generator)
    return torch.cat([flips[:, None].long(), most], 1)


def moved(rows: Tensor, moves: Tensor, shift: int = 0) -> Tensor:
    """Images (b, c, h, w), moved as `draw_moves` drew it, by ``shift`` at most; zeros come in."""
    rows = torch.where((moves[:, 0] > 0)[:, None, None, None], rows.flip(3), rows)
    if not shift:
        return rows
    b, _, h, w = rows.shape
    padded = torch.nn.functional.pad(rows, (shift, shift, shift, shift))
    image = torch.arange(b, device=rows.device)[:, None, None]
    y = shift - moves[:, 1:2] + torch.arange(h, device=rows.device)
    x = shift - moves[:, 2:] + torch.arange(w, device=rows.device)
    return padded[image, :, y[:, :, None], x[:, None, :]].permute(0, 3, 1, 2)


class RecentMemory:
    """The most recent rows, from which chunks are drawn uniformly with replacement (appendix D.4).

    Parameters
    ----------
    size : int
        Rows kept; older ones are dropped.
    draw : int
        Rows drawn at a time.
    seed : int
    flip : bool
        Mirror each drawn image (c, h, w) with probability 1/2.

    Examples
    --------
    >>> memory = RecentMemory(size=3, draw=2)
    >>> memory.sample() is None  # the memory is empty
    True
    >>> memory.add(torch.arange(5.0)[:, None], torch.arange(5))
    >>> sorted(memory.labels.tolist())
    [2, 3, 4]
    """

    def __init__(
        self, size: int = 100, draw: int = 10, seed: int = 0, *, flip: bool = False
    ) -> None:
        if size < 1 or draw < 1:
            raise InvalidInput(f"size and draw must be 1 or more, got {size} and {draw}")
        self.size, self.draw, self.flip = size, draw, flip
        self.generator = torch.Generator().manual_seed(seed)
        self._ring: tuple[Tensor, Tensor] | None = None  # rows and labels, the oldest at _start
        self._start = self._n = 0

    @property
    def rows(self) -> Tensor | None:
        """The rows, the oldest first; None while the memory is empty."""
        return self._in_order(0)

    @property
    def labels(self) -> Tensor | None:
        """Their labels."""
        return self._in_order(1)

    def _in_order(self, which: int) -> Tensor | None:
        return None if self._ring is None else self._ring[which][: self._n].roll(-self._start, 0)

    def check(self, rows: Tensor) -> None:
        """Refuse rows that cannot be added."""
        if self.flip:
            check_images(rows)
        ours = rows.shape[1:] if self._ring is None else self._ring[0].shape[1:]
        if rows.shape[1:] != ours:
            raise InvalidInput(
                f"the replay memory holds rows of shape {tuple(ours)}, got {tuple(rows.shape[1:])};"
                " give rows of one shape, or train with replay=None"
            )

    def add(self, rows: Tensor, labels: Tensor) -> None:
        """Add a chunk."""
        self.check(rows)
        rows, labels = rows[-self.size :], labels[-self.size :]
        if self._ring is None:
            empty = (each.new_empty(self.size, *each.shape[1:]) for each in (rows, labels))
            self._ring = next(empty), next(empty)
        end = (self._start + self._n) % self.size
        first = min(len(rows), self.size - end)  # the rest begins the ring again
        for ring, new in zip(self._ring, (rows, labels), strict=True):
            ring[end : end + first] = new[:first]
            ring[: len(new) - first] = new[first:]
        n_over = max(self._n + len(rows) - self.size, 0)
        self._start, self._n = (self._start + n_over) % self.size, self._n + len(rows) - n_over

    def sample(self) -> Pair | None:
        """Draw a chunk of rows and labels; None while the memory is empty."""
        drawn = self.samples(1)
        return drawn[0] if drawn else None

    def samples(self, n: int) -> list[Pair]:
        """Draw n chunks; an empty list while the memory is empty."""
        if self._ring is None:
            return []
        ages, moves = [], []
        for _ in range(n):
            ages.append(torch.randint(self._n, (self.draw,), generator=self.generator))
            if self.flip:
                moves.append(draw_moves(self.draw, True, 0, self.generator))
        index = ((self._start + torch.cat(ages)) % self.size).to(self._ring[0].device)
        rows, labels = self._ring[0][index], self._ring[1][index]
        if self.flip:
            rows = moved(rows, torch.cat(moves).to(rows.device))
        return list(zip(rows.split(self.draw), labels.split(self.draw), strict=True))

    def state_dict(self) -> dict[str, Any]:
        """Complete state, for a checkpoint."""
        return {"rows": self.rows, "labels": self.labels, "rng": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""
        self._ring, self._start, self._n = None, 0, 0
        if state["rows"] is not None:
            if len(state["rows"]) != len(state["labels"]):
                raise InvalidInput("the rows of the memory must have one label each")
            self.add(state["rows"], state["labels"])
        self.generator.set_state(state["rng"].cpu())


class ReplayStreams:
    """Pointers that walk over all past chunks (Bornschein et al., 2022; appendix D.5).

    After t chunks, a pointer that was read returns to the start with probability 1 / (t + 2).
    Otherwise it moves to the next chunk. A pointer that reaches the present starts again.

    Parameters
    ----------
    n_streams : int
    seed : int
    again : function, optional
        Reads the k-th chunk, rows and labels, again. Without it all chunks are kept in memory.

    Examples
    --------
    >>> streams = ReplayStreams(n_streams=2)
    >>> streams.add(torch.zeros(1, 1), torch.zeros(1, dtype=torch.int64))
    >>> len(streams.chunks())
    2
    """

    def __init__(
        self,
        n_streams: int = 8,
        seed: int = 0,
        again: Callable[[int], tuple[Tensor, Tensor]] | None = None,
    ) -> None:
        if n_streams < 1:
            raise InvalidInput(f"n_streams must be 1 or more, got {n_streams}")
        self.pointers = [0] * n_streams
        self.generator = torch.Generator().manual_seed(seed)
        self.again = again
        self.past: list[tuple[Tensor, Tensor]] = []
        self.n_chunks = 0

    def add(self, rows: Tensor, labels: Tensor) -> None:
        """Add a chunk."""
        self.n_chunks += 1
        if self.again is None:
            self.past.append((rows.clone(), labels.clone()))

    def chunks(self) -> list[tuple[Tensor, Tensor]]:
        """The next chunk of each stream; an empty list before the first chunk was added."""
        if not self.n_chunks:
            return []
        read = self.again or self.past.__getitem__
        chunks = [read(pointer) for pointer in self.pointers]
        back = torch.rand(len(self.pointers), generator=self.generator) < 1 / (self.n_chunks + 2)
        self.pointers = [
            0 if returns or pointer + 1 >= self.n_chunks else pointer + 1
            for pointer, returns in zip(self.pointers, back.tolist(), strict=True)
        ]
        return chunks

    def state_dict(self) -> dict[str, Any]:
        """Complete state, for a checkpoint."""
        past = [list(chunk) for chunk in self.past]
        place = {"pointers": self.pointers, "n_chunks": self.n_chunks}
        return {**place, "past": past, "rng": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""
        pointers, past = list(state["pointers"]), [(rows, labels) for rows, labels in state["past"]]
        n_chunks = state.get("n_chunks", len(past))
        if self.again is None and n_chunks != len(past):
            raise InvalidInput(
                f"the state holds {len(past)} of {n_chunks} chunks; give ReplayStreams the again= "
                "that it was saved with"
            )
        if not all(type(each) is int and 0 <= each < max(n_chunks, 1) for each in pointers):
            raise InvalidInput(f"pointers must be chunks from 0 to {n_chunks - 1}, got {pointers}")
        self.pointers, self.past, self.n_chunks = pointers, past, n_chunks
        self.generator.set_state(state["rng"].cpu())
