"""Base class of learners: the chunk protocol, features, scikit-learn's methods, checkpoints."""

from __future__ import annotations

import copy
import os
import warnings
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from kalstream._files import replacing
from kalstream.core import checks as check
from kalstream.deep._ranks import Ranks
from kalstream.deep.replay import RecentMemory, ReplayStreams
from kalstream.errors import CheckpointError, InvalidInput, NumericalError

Array = NDArray[Any]

BATCH_NORM: Final = ("eval", "train", "running", "fixed")
# Raise it when `state_dict` changes. `restore` reads all formats from the oldest on. In format 2 a
# head had no likelihood; when it is loaded, `KalmanHead` adds the one it had then, "onehot".
FORMAT: Final = 3
_OLDEST_FORMAT: Final = 2
_PLAIN_STEPS: Final = 3  # chunks of a shape that are learned before it is captured


@dataclass(frozen=True)
class Outcome:
    """Result of predicting and learning one chunk.

    Attributes
    ----------
    log_prob : (b,)
        Log-probabilities of the labels, predicted before they were learned.
    predicted : (b,)
        Most probable classes.
    gamma : ()
        Forgetting coefficient after the chunk; 1 for a learner without one.
    """

    log_prob: Tensor
    predicted: Tensor
    gamma: Tensor


class Learner(ABC):
    """A backbone and a head, learned chunk by chunk: base of `OnlineLearner` and the baselines.

    A subclass defines the gradient steps of a chunk (`_inputs`, `_train`) and how the head learns
    afterwards (`_finish`).
    """

    _capturing = False

    def __init__(
        self,
        backbone: nn.Module,
        head: Any,
        *,
        replay: RecentMemory | ReplayStreams | None = None,
        batch_norm: str = "eval",
        preprocess: Callable[[Array], Tensor] | None = None,
        device: str | torch.device = "cpu",
        autocast: torch.dtype | None = None,
        capture: bool = True,
    ) -> None:
        check.choice("batch_norm", batch_norm, BATCH_NORM)
        self.device = torch.device(device)
        self.backbone, self.head = backbone.to(self.device), head.to(self.device)
        if self.device.type == "cuda":  # convolutions are faster there with channels last
            self.backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.replay: Any = replay  # subclasses accept one of the two kinds
        self.batch_norm, self.autocast = batch_norm, autocast
        self.preprocess = preprocess or _as_floats
        self.optimizer: Any = None
        self.ranks = Ranks.now(backbone, head)
        self.tunes = any(parameter.requires_grad for parameter in backbone.parameters())
        if not (autocast is None or isinstance(autocast, torch.dtype)):
            raise InvalidInput(f"autocast must be a dtype such as torch.bfloat16, got {autocast!r}")
        self.capture = capture and self.ranks is None and self.device.type == "cuda"
        self.n_seen_ = 0
        self._steps: dict[Any, Any] = {}

    def _optimize(
        self, optimizer: Callable[[list[Any]], torch.optim.Optimizer], parameters: list[Any]
    ) -> None:
        """Make the optimizer, capturable if the step is to be captured."""
        if not callable(optimizer):
            raise InvalidInput(
                f"optimizer must be a function from parameters to an optimizer, such as "
                f"torch.optim.SGD, got {optimizer!r}"
            )
        self.optimizer = optimizer(parameters)
        for group in self.optimizer.param_groups if self.capture else ():
            if "capturable" in group:
                group["capturable"] = True

    @property
    def classes_(self) -> Array:
        """Classes 0 to K - 1."""
        return np.arange(self.head.n_classes)

    def __sklearn_is_fitted__(self) -> bool:
        return self.n_seen_ > 0

    # ---- the chunk protocol ---------------------------------------------------------------------

    def step(self, rows: Tensor, labels: Tensor) -> Outcome:
        """Predict a chunk of rows on the device, then learn it.

        If an error is raised, the posterior is unchanged; the network may have taken its gradient
        step.
        """
        parts = self.parts(rows, labels)
        while True:
            try:
                next(parts)
            except StopIteration as end:
                return end.value

    def parts(self, rows: Tensor, labels: Tensor) -> Generator[None, None, Outcome]:
        """A `step` in three parts: prepare inputs, start the work on the device, wait for it.

        Call no other method of the learner in between.
        """
        inputs = self._inputs(rows, labels)
        yield
        graph = self._graph(inputs)
        if graph is None:
            predicted, features = self._predict(*inputs[:2]), self._train(*inputs)
        else:
            predicted, features = graph(inputs)
        wait = self._finish(features, inputs)
        yield
        wait()
        self._count(*inputs[:2])
        delta = getattr(self.head, "delta", torch.zeros((), dtype=torch.float64))
        return Outcome(*predicted, torch.exp(-0.5 * delta))

    def _predict(self, rows: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities of the labels (b,), and most probable classes (b,)."""
        features = self._features(rows, grad=False)
        with torch.no_grad():
            return self.head.log_prob(features, labels), self.head.scores(features).argmax(1)

    @abstractmethod
    def _inputs(self, rows: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        """Rows, labels and all further inputs of the gradient steps, random draws included."""

    @abstractmethod
    def _train(self, rows: Tensor, labels: Tensor, *more: Tensor) -> Tensor | None:
        """Take the gradient steps of a chunk; returns the features (b, m) that the head learns.

        It may be captured as a CUDA graph, so it draws no random numbers and never waits for the
        device.
        """

    @abstractmethod
    def _finish(self, features: Tensor | None, inputs: tuple[Tensor, ...]) -> Callable[[], Any]:
        """Start learning the head; returns a function that waits for it."""

    def _count(self, rows: Tensor, labels: Tensor) -> None:
        """Add a learned chunk to the replay memory and to the number of rows."""
        if self.replay is not None:
            self.replay.add(rows, labels)
        self.n_seen_ += len(labels)

    def _graph(self, inputs: tuple[Tensor, ...]) -> Any:
        """The CUDA graph for inputs of these shapes, or None.

        The first chunks of a shape are learned without a graph, which initialises the buffers that
        a graph needs.
        """
        if not (self.capture and self.optimizer is not None and inputs[0].is_cuda):
            return None
        key = tuple(each.shape for each in inputs)
        step = self._steps.get(key, 0)
        if isinstance(step, int) and step < _PLAIN_STEPS:
            self._steps[key] = step + 1
            return None
        if isinstance(step, int):
            from kalstream.deep._graph import CapturedStep

            try:
                step = self._steps[key] = CapturedStep(self, inputs)
            except RuntimeError as error:
                warnings.warn(
                    f"the training step cannot be captured as a CUDA graph ({error}); it runs "
                    "without one, which is slower. Pass capture=False to avoid this warning",
                    stacklevel=4,
                )
                self.capture = False
                return None
        return step

    def _descend(self, loss: Callable[..., Tensor], *data: Tensor) -> None:
        """Take one gradient step; if it fails, nothing changes."""
        self.optimizer.zero_grad(set_to_none=True)
        if self._capturing:
            loss(*data).backward()
        else:
            # a failed forward pass may already have changed the running averages of batch norm
            before = [(buffer, buffer.clone()) for buffer in self.backbone.buffers()]
            try:
                with torch.enable_grad():
                    loss(*data).backward()
            except Exception:
                for buffer, kept in before:
                    buffer.copy_(kept)
                raise
        if self.ranks is not None:
            self.ranks.reduce_(self.backbone)
        self.optimizer.step()

    def _features(self, rows: Tensor, *, grad: bool, train: bool = False) -> Tensor:
        self.backbone.train(grad or train)
        if self.batch_norm in ("train", "fixed"):
            for module in self.backbone.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.train(self.batch_norm == "train")
        if rows.is_cuda and rows.ndim == 4:
            rows = rows.contiguous(memory_format=torch.channels_last)
        mixed: AbstractContextManager[object] = nullcontext()
        if self.autocast is not None:
            mixed = torch.autocast(self.device.type, self.autocast)
        try:
            with torch.set_grad_enabled(grad), mixed:
                features = self._computed(rows)
        except torch.OutOfMemoryError as error:
            raise NumericalError(
                f"{self.device} has not enough memory for a chunk of {len(rows)} rows; use smaller "
                "chunks (the posterior is unchanged)"
            ) from error
        except ValueError as error:
            if len(rows) > 1 or "more than 1 value per channel" not in str(error):
                raise
            raise InvalidInput(
                "batch norm cannot be trained on a chunk of one row; use larger chunks (chunk=10), "
                'or batch_norm="fixed"'
            ) from error
        if not isinstance(features, torch.Tensor):
            raise InvalidInput(
                f"the backbone must return a tensor of features (b, m), got "
                f"{type(features).__name__}; wrap it in a module that returns one"
            )
        if not self._capturing and not bool(torch.isfinite(features).all()):
            raise InvalidInput(
                "the backbone returned NaN or infinity: it has diverged, or its input is too "
                "large; lower its learning rate, or restore a checkpoint (the posterior is "
                "unchanged)"
            )
        return features

    def _computed(self, rows: Tensor) -> Tensor:
        if self.ranks is None:
            return self.backbone(rows)
        return self.ranks.gather(self.backbone(self.ranks.own(rows)), len(rows))

    # ---- scikit-learn's methods ----------------------------------------------------------

    def partial_fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Learn a chunk of rows (b, ...) with labels (b,), 0 to K - 1."""
        rows, labels = self._rows(X), self._as_labels(y)
        if len(rows) != len(labels):
            raise InvalidInput(f"y has {len(labels)} labels for the {len(rows)} rows of X")
        inputs = self._inputs(rows, labels)
        graph = self._graph(inputs)
        features = self._train(*inputs) if graph is None else graph(inputs)[1]
        self._finish(features, inputs)()
        self._count(*inputs[:2])
        return self

    def predict_proba(self, X: ArrayLike) -> Array:
        """Class probabilities (b, K), exact."""
        features = self._features(self._rows(X), grad=False)
        return self.head.probabilities(features).double().cpu().numpy()

    def predict(self, X: ArrayLike) -> Array:
        """Most probable class of each row (b,)."""
        with torch.no_grad():
            features = self._features(self._rows(X), grad=False)
            return self.head.scores(features).argmax(1).cpu().numpy()

    def _rows(self, X: ArrayLike) -> Tensor:
        rows = self.preprocess(np.asarray(X))
        if not isinstance(rows, torch.Tensor):
            raise InvalidInput(f"preprocess must return a torch tensor, got {type(rows).__name__}")
        dtype = next((each.dtype for each in self.backbone.parameters()), rows.dtype)
        if rows.is_floating_point():
            rows = rows.to(dtype)
        if not bool(torch.isfinite(rows).all()):  # NaN would stay in the running averages
            row = int((~torch.isfinite(rows)).flatten(1).any(1).nonzero()[0, 0])
            raise InvalidInput(f"X holds NaN or infinity in row {row}; remove such rows")
        return rows.to(self.device)

    def _as_labels(self, y: ArrayLike) -> Tensor:
        labels = np.asarray(y)
        if labels.dtype == object:
            labels = np.array(labels.tolist())
        if labels.dtype.kind not in "iu" or labels.ndim != 1:
            raise InvalidInput(
                f"labels must be integers (b,), 0 to K - 1, got {labels.shape} of {labels.dtype}; "
                "number the classes with np.unique(y, return_inverse=True)"
            )
        return torch.from_numpy(labels.astype(np.int64)).to(self.device)

    # ---- checkpoints ----------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimizer, posterior, replay, position and state of random generators."""
        return {
            "format": FORMAT,
            "learner": type(self).__name__,
            "optimized_by": type(self.optimizer).__name__,
            "backbone": self.backbone.state_dict(),
            "head": self.head.state_dict(),
            "optimizer": None if self.optimizer is None else self.optimizer.state_dict(),
            "replay": None if self.replay is None else self.replay.state_dict(),
            "n_seen": self.n_seen_,
            "rng": torch.get_rng_state(),
            "cuda_rng": torch.cuda.get_rng_state() if self.device.type == "cuda" else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned; if it does not fit, nothing changes."""
        if state["learner"] != type(self).__name__:
            raise CheckpointError(
                f"the checkpoint was saved by {state['learner']}, this learner is "
                f"{type(self).__name__}; make the learner as it was when saved"
            )
        other = state["optimized_by"] != type(self.optimizer).__name__
        for differs, name in (
            (other, "optimizer"),
            ((self.replay is None) != (state["replay"] is None), "replay"),
        ):
            if differs:
                raise CheckpointError(
                    f"the checkpoint and this learner differ in {name}; make the learner as "
                    "it was when saved"
                )
        before = copy.deepcopy(self.state_dict())
        try:
            self._load(state)
        except Exception:
            self._load(before)
            raise

    def _load(self, state: dict[str, Any]) -> None:
        for name in ("backbone", "head", "optimizer", "replay"):
            if state[name] is not None:
                getattr(self, name).load_state_dict(state[name])
        self.n_seen_ = state["n_seen"]
        torch.set_rng_state(state["rng"].cpu())
        if state["cuda_rng"] is not None and self.device.type == "cuda":
            torch.cuda.set_rng_state(state["cuda_rng"].cpu())
        self._steps = {}  # graphs refer to the old buffers

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint to one file, atomically. Of several ranks only the first writes."""
        if self.ranks is None or self.ranks.rank == 0:
            with replacing(path) as file:
                torch.save(self.state_dict(), file)
        if self.ranks is not None:
            self.ranks.wait()

    def restore(self, path: str | os.PathLike[str]) -> Self:
        """Restore a file that `save` of a learner of the same parts wrote. No code in it is run."""
        try:
            with zipfile.ZipFile(path) as archive:
                damaged = archive.testzip()  # torch does not check checksums
            if damaged is not None:
                raise CheckpointError(f"{path} is damaged ({damaged}); use an earlier checkpoint")
            state = torch.load(path, map_location=self.device, weights_only=True)
            if not _OLDEST_FORMAT <= state["format"] <= FORMAT:
                other = "a later" if state["format"] > FORMAT else "an earlier"
                raise CheckpointError(
                    f"{path} was written by {other} version of kalstream; use that version"
                )
            self.load_state_dict(state)
        except (CheckpointError, FileNotFoundError):
            raise
        except Exception as error:
            raise CheckpointError(
                f"{path} cannot be restored into this {type(self).__name__}: {error}"
            ) from error
        return self


def _as_floats(rows: Array) -> Tensor:
    """Numbers as float32; images (b, h, w, c), uint8, as (b, c, h, w) from 0 to 1."""
    if rows.dtype == np.uint8 and rows.ndim == 4:
        return torch.from_numpy(np.ascontiguousarray(rows)).permute(0, 3, 1, 2).float() / 255.0
    return torch.from_numpy(np.asarray(rows, np.float32))
