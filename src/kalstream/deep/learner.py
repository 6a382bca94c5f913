"""Fine-tuning online: the chunk protocol of the paper's appendix D.2."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import nn

from kalstream.core import _checks as check
from kalstream.deep.head import KalmanHead
from kalstream.deep.replay import RecentMemory
from kalstream.errors import CheckpointError, InvalidInput, NumericalError

Tensor = Any
Array = NDArray[Any]

BATCH_NORM: Final = ("eval", "train")
FORMAT: Final = 1
_PLAIN_STEPS: Final = 3  # chunks of a shape before it is captured


@dataclass(frozen=True)
class Outcome:
    """What came of a chunk.

    Attributes
    ----------
    log_prob : (b,)
        Of the labels, before anything was learnt from them.
    predicted : (b,)
        Most probable classes.
    gamma : float
        After the chunk.
    """

    log_prob: Tensor
    predicted: Tensor
    gamma: float


class OnlineLearner:
    """A network with a Kalman head, learnt chunk by chunk.

    A chunk is predicted, each row on its own; one gradient step on the calibration and the
    backbone follows, with the mean log-probability as the objective; the features are
    computed again, and the filter runs over the chunk (appendix D.2).

    Parameters
    ----------
    backbone : nn.Module
        From rows, as `preprocess` returns them, to features (b, n_features).
    head : KalmanHead
    lr : float
        Learning rate of the calibration; 0 trains nothing by gradients.
    beta : float
        That of the backbone over that of the calibration; 0 freezes it.
    optimizer : function from parameter groups to an optimizer
        `torch.optim.SGD` by default.
    replay : RecentMemory, optional
        Drawn rows are appended to the chunk: they enter the gradient and the filter, never a
        metric.
    batch_norm : "eval" or "train"
        With "eval" the running averages are used to predict and to filter, the chunk's own
        only in the gradient step; with "train" the chunk's own everywhere (and a row's features
        depend on the rows beside it).
    preprocess : function, optional
        From an array of rows to a tensor for the backbone; floats as they are by default.
    device : str or device
    autocast : torch.dtype, optional
        torch.bfloat16, for the backbone on a GPU; the filter keeps its own type.
    capture : bool
        On a GPU, run prediction and gradient step as a CUDA graph once chunks of a shape have come
        a few times: several times faster. An optimizer must allow it (SGD does; AdamW with
        ``capturable=True``), and a backbone must do the same every time.

    Attributes
    ----------
    classes_ : (K,)
        0 to K - 1.
    n_seen_ : int

    Examples
    --------
    >>> learner = OnlineLearner(nn.Identity(), KalmanHead(2, 2, noise_var=0.1, prior_var=1.0))
    >>> rows, labels = [[1.0, 0.0], [0.0, 1.0]] * 20, [0, 1] * 20
    >>> learner.partial_fit(rows, labels).predict([[1.0, 0.1]])
    array([0])
    """

    capture = False
    _capturing = False

    def __init__(
        self,
        backbone: nn.Module,
        head: KalmanHead,
        *,
        lr: float = 0.01,
        beta: float = 1.0,
        optimizer: Callable[[list[dict[str, Any]]], Any] = torch.optim.SGD,
        replay: RecentMemory | None = None,
        batch_norm: str = "eval",
        preprocess: Callable[[Array], Tensor] | None = None,
        device: Any = "cpu",
        autocast: Any = None,
        capture: bool = True,
    ) -> None:
        if not (lr >= 0.0 and beta >= 0.0):
            raise InvalidInput(f"lr and beta must be 0 or more, got {lr!r} and {beta!r}")
        check.choice("batch_norm", batch_norm, BATCH_NORM)
        self.device = torch.device(device)
        self.backbone, self.head = backbone.to(self.device), head.to(self.device)
        self.tunes = lr * beta > 0.0 and any(p.requires_grad for p in backbone.parameters())
        for parameter in backbone.parameters():
            parameter.requires_grad_(parameter.requires_grad and self.tunes)
        groups: list[dict[str, Any]] = [{"params": [head.log_calibration], "lr": lr}]
        if self.tunes:
            trained = [p for p in backbone.parameters() if p.requires_grad]
            groups.append({"params": trained, "lr": lr * beta})
        self.optimizer: Any = optimizer(groups) if lr > 0.0 else None
        self.replay, self.batch_norm, self.autocast = replay, batch_norm, autocast
        self.preprocess = preprocess or _as_floats
        self.capture = capture
        self._steps: dict[Any, Any] = {}

    @property
    def classes_(self) -> Array:
        """Classes 0 to K - 1."""
        return np.arange(self.head.n_classes)

    @property
    def n_seen_(self) -> int:
        """Rows observed, replayed ones included."""
        return self.head.n_seen

    def __sklearn_is_fitted__(self) -> bool:
        return self.n_seen_ > 0

    # ---- the protocol ---------------------------------------------------------------------

    def step(self, rows: Tensor, labels: Tensor) -> Outcome:
        """Predict a chunk of rows on the device, then learn it.

        Should anything go wrong, the posterior is what it was; the network may have taken its
        gradient step.
        """
        outcome = self._captured(rows, labels)
        if outcome is None:
            said = self._predict(rows, labels)
            self._learn(rows, labels)
            outcome = Outcome(*said, self.head.gamma)
        return outcome

    def _predict(self, rows: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        shown = self._features(rows, grad=False)
        with torch.no_grad():
            mean, _ = self.head(shown)
            return self.head.log_prob(shown, labels), mean.argmax(1)

    def _learn(self, rows: Tensor, labels: Tensor) -> None:
        all_rows, all_labels = self._with_replay(rows, labels)
        if self.optimizer is not None:
            self._descend(all_rows, all_labels)
        self.head.observe(self._features(all_rows, grad=False), all_labels)
        if self.replay is not None:
            self.replay.add(rows, labels)

    def _with_replay(self, rows: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        again = None if self.replay is None else self.replay.sample()
        if again is None:
            return rows, labels
        return torch.cat([rows, again[0]]), torch.cat([labels, again[1]])

    def _captured(self, rows: Tensor, labels: Tensor) -> Outcome | None:
        """Predict and learn with all but the filter in one CUDA graph; None if it is not time.

        The first chunks of a shape are learnt the plain way: they set up what a graph needs.
        """
        if not (self.capture and self.tunes and rows.is_cuda):
            return None
        again = self.replay is not None and self.replay.rows is not None
        key = tuple(rows.shape), again
        step = self._steps.get(key, 0)
        if isinstance(step, int) and step < _PLAIN_STEPS:
            self._steps[key] = step + 1
            return None
        all_rows, all_labels = self._with_replay(rows, labels)
        if isinstance(step, int):
            from kalstream.deep._graph import CapturedStep

            step = self._steps[key] = CapturedStep(self, all_rows, all_labels, len(rows))
        log_prob, predicted, features = step(all_rows, all_labels)
        self.head.observe(features, all_labels)
        if self.replay is not None:
            self.replay.add(rows, labels)
        return Outcome(log_prob, predicted, self.head.gamma)

    def _descend(self, rows: Tensor, labels: Tensor) -> None:
        """One gradient step on the calibration and the backbone."""
        features = self._features(rows, grad=self.tunes)
        loss = -self.head.log_prob(features, labels).mean()
        if not self._capturing and not bool(torch.isfinite(loss)):
            raise NumericalError(
                f"the loss is {float(loss)} at row {self.n_seen_}; lower lr or beta, or check the "
                "backbone: nothing was learnt from this chunk"
            )
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()

    def _features(self, rows: Tensor, *, grad: bool) -> Tensor:
        self.backbone.train(grad or self.batch_norm == "train")
        mixed = nullcontext()
        if self.autocast is not None:
            mixed = torch.autocast(self.device.type, self.autocast)
        try:
            with torch.set_grad_enabled(grad), mixed:
                features = self.backbone(rows)
        except torch.OutOfMemoryError as error:
            raise NumericalError(
                f"{self.device} has no room for a chunk of {len(rows)} rows; use smaller chunks "
                "(what was learnt before is as it was)"
            ) from error
        if not self._capturing and not bool(torch.isfinite(features).all()):
            raise InvalidInput(
                "the backbone returned NaN or infinity; lower its learning rate, or check its "
                "weights (nothing was learnt from this chunk)"
            )
        return features

    # ---- the face of an estimator ---------------------------------------------------------

    def partial_fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Learn a chunk of rows (b, ...) with labels (b,), 0 to K - 1."""
        rows, labels = self._rows(X), self._as_labels(y)
        if len(rows) != len(labels):
            raise InvalidInput(f"y has {len(labels)} labels for the {len(rows)} rows of X")
        if self._captured(rows, labels) is None:
            self._learn(rows, labels)
        return self

    def predict_proba(self, X: ArrayLike) -> Array:
        """Class probabilities (b, K), exact."""
        features = self._features(self._rows(X), grad=False)
        return self.head.probabilities(features).double().cpu().numpy()

    def predict(self, X: ArrayLike) -> Array:
        """Most probable class of each row (b,)."""
        with torch.no_grad():
            return self.head(self._features(self._rows(X), grad=False)).mean.argmax(1).cpu().numpy()

    def _rows(self, X: ArrayLike) -> Tensor:
        rows = self.preprocess(np.asarray(X))
        if not bool(torch.isfinite(rows).all()):  # it would spoil running averages for good
            row = int((~torch.isfinite(rows)).flatten(1).any(1).nonzero()[0, 0])
            raise InvalidInput(f"X holds NaN or infinity in row {row}; leave such rows out")
        return rows.to(self.device)

    def _as_labels(self, y: ArrayLike) -> Tensor:
        labels = np.asarray(y)
        if labels.dtype == object:
            labels = np.array(labels.tolist())
        if labels.dtype.kind not in "iu":
            raise InvalidInput(f"labels must be whole numbers, 0 to K - 1; got {labels.dtype}")
        return torch.from_numpy(labels.astype(np.int64)).to(self.device)

    # ---- to be continued ------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimizer, posterior, replay and random numbers."""
        return {
            "format": FORMAT,
            "backbone": self.backbone.state_dict(),
            "head": self.head.state_dict(),
            "optimizer": None if self.optimizer is None else self.optimizer.state_dict(),
            "replay": None if self.replay is None else self.replay.state_dict(),
            "rng": torch.get_rng_state(),
            "cuda_rng": torch.cuda.get_rng_state() if self.device.type == "cuda" else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        self.backbone.load_state_dict(state["backbone"])
        self.head.load_state_dict(state["head"])
        for part, name in ((self.optimizer, "optimizer"), (self.replay, "replay")):
            if (part is None) != (state[name] is None):
                raise CheckpointError(f"the checkpoint and this learner differ in their {name}")
            if part is not None:
                part.load_state_dict(state[name])
        torch.set_rng_state(state["rng"].cpu())
        if state["cuda_rng"] is not None and self.device.type == "cuda":
            torch.cuda.set_rng_state(state["cuda_rng"].cpu())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to one file, whole or not at all."""
        target = Path(path)
        part = target.with_name(target.name + ".part")
        torch.save(self.state_dict(), part)
        part.replace(target)

    def restore(self, path: str | os.PathLike[str]) -> Self:
        """Go on from a file that `save` wrote, made by a learner of the same parts; no pickle."""
        try:
            state = torch.load(path, map_location=self.device, weights_only=True)
            if state["format"] > FORMAT:
                raise CheckpointError(f"{path} is of a later version; upgrade kalstream")
            self.load_state_dict(state)
        except (CheckpointError, FileNotFoundError):
            raise
        except Exception as error:
            raise CheckpointError(f"{path} cannot be read back: {error}") from error
        return self


def _as_floats(rows: Array) -> Tensor:
    """Numbers as float32; images (b, h, w, c) of bytes as (b, c, h, w) from 0 to 1."""
    if rows.dtype == np.uint8:
        return torch.from_numpy(np.ascontiguousarray(rows)).permute(0, 3, 1, 2).float() / 255.0
    return torch.from_numpy(np.asarray(rows, np.float32))
