"""The learner: chunk protocol, features, scikit-learn's methods, checkpoints."""

from __future__ import annotations

import copy
import os
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from kalstream._arrays import Array
from kalstream._files import replacing
from kalstream.core import checks as check
from kalstream.deep._ranks import Ranks
from kalstream.deep.head import Head, NetworkOutput, Observation, Prediction
from kalstream.deep.slow import SlowCopies
from kalstream.deep.stack import as_tuple
from kalstream.deep.step import ChunkStep, Executors, Outcome, Work
from kalstream.deep.training import CrossEntropy, ThroughHead, Training
from kalstream.errors import CheckpointError, InvalidInput, NumericalError

BATCH_NORM: Final = ("eval", "train", "running", "fixed")
# Raise it when `state_dict` changes. `restore` reads all formats from the oldest on. In format 2 a
# head had no likelihood; when it is loaded, `KalmanHead` adds the one it had then, "onehot". Before
# format 4 there were no slow copies, and the training had no state but that of flips.
FORMAT: Final = 4
_OLDEST_FORMAT: Final = 2


class Learner:
    """A network, and a head that predicts from its features, learned chunk by chunk.

    You choose how the network is trained (``training``), and what predicts from its features
    (``head``). Each chunk is predicted, every row separately, before anything is learned from it.
    `OnlineLearner` is the paper's method; the baselines are combinations too.

    In a process group (`torch.distributed`, torchrun) every rank gets all rows and computes the
    features of its part. Gradients are summed and features gathered, so the posterior is the same
    on all ranks. Batch norm uses the rows of one rank; running averages are averaged over ranks.

    Parameters
    ----------
    backbone : nn.Module
        Maps rows, as `preprocess` returns them, to features (b, n_features). Parameters that do not
        require gradients are not trained.
    head : Head
        `Stack`, `KalmanHead`, `MixtureHead`, `SoftmaxHead`, or one of your own.
    training : Training, optional
        `CrossEntropy()` by default, or `ThroughHead()` for a Kalman head. ``Frozen()`` trains
        nothing.
    slow : float or sequence of float
        Decays of slow copies of the network (`SlowCopies`). A `Stack` reads the network and all
        copies, and has decays of its own by default. Other heads read the last copy in place of the
        network.
    batch_norm : "eval", "train", "running" or "fixed"
        Which averages batch norm uses; slow copies always use their running averages.

        - "eval": running averages to predict and to filter, those of the chunk in the gradient
          step.
        - "train": those of the chunk everywhere; the features of a row then depend on the chunk.
        - "running": as "eval", but the running averages follow the stream also if the backbone is
          frozen. Good for random weights, bad for pretrained ones.
        - "fixed": running averages everywhere, and they do not change.
    preprocess : function, optional
        Maps an array of rows to a tensor for the backbone. By default numbers become float32, and
        images (b, h, w, c) of uint8 become (b, c, h, w) from 0 to 1. `step` takes such tensors.
    device : str or device
    autocast : torch.dtype, optional
        Data type of the backbone on a GPU, such as torch.bfloat16; the head keeps its own.
    capture : bool
        On a GPU, run the work on a chunk as one CUDA graph, after the first three chunks of a
        shape. This is several times faster. The backbone must do the same operations every time.

    Attributes
    ----------
    classes_ : (K,)
        0 to K - 1.
    n_seen_ : int
        Rows learned, without replayed ones: the row of the stream from which to resume.

    Examples
    --------
    >>> from kalstream.deep import CrossEntropy, Stack
    >>> _ = torch.manual_seed(0)
    >>> network = nn.Sequential(nn.Linear(2, 8), nn.ReLU())
    >>> learner = Learner(network, Stack(8, 2), CrossEntropy(n_steps=1))
    >>> for _ in range(20):
    ...     learner = learner.partial_fit([[1.0, 0.0], [0.0, 1.0]] * 5, [0, 1] * 5)
    >>> learner.predict([[1.0, 0.1]]), learner.n_seen_
    (array([0]), 200)
    """

    def __init__(
        self,
        backbone: nn.Module,
        head: Head,
        training: Training | None = None,
        *,
        slow: float | Sequence[float] | None = None,
        batch_norm: str = "eval",
        preprocess: Callable[[Array], Tensor] | None = None,
        device: str | torch.device = "cpu",
        autocast: torch.dtype | None = None,
        capture: bool = True,
    ) -> None:
        check.choice("batch_norm", batch_norm, BATCH_NORM)
        check.instance("backbone", backbone, nn.Module)
        check.instance("head", head, Head)
        if training is None:
            training = ThroughHead() if head.trains_network else CrossEntropy()
        check.instance("training", training, Training)
        self.device = torch.device(device)
        self.backbone, self.head = backbone.to(self.device), head.to(self.device)
        if self.device.type == "cuda":  # convolutions are faster there with channels last
            self.backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.batch_norm, self.autocast = batch_norm, autocast
        self.preprocess = preprocess or _as_floats
        self.ranks = Ranks.now(backbone, head)
        self.tunes = any(parameter.requires_grad for parameter in backbone.parameters())
        if not (autocast is None or isinstance(autocast, torch.dtype)):
            raise InvalidInput(f"autocast must be a dtype such as torch.bfloat16, got {autocast!r}")
        self.capture = capture and self.ranks is None and self.device.type == "cuda"
        self.n_seen_ = 0
        if training.is_attached:
            raise InvalidInput(
                "this training already belongs to a learner; make another one with the same options"
            )
        self.training, training.is_attached = training, True
        training.attach(self)
        self.slow = self._slow_copies(slow)
        self.executors = Executors(self)

    def _slow_copies(self, slow: float | Sequence[float] | None) -> SlowCopies | None:
        decays = list(as_tuple(self.head.decays if slow is None else slow))
        self.head.check_decays(decays)
        return SlowCopies(self._network(), decays).to(self.device) if decays else None

    def _network(self) -> nn.ModuleList:
        """The backbone, and the layer of a stack: what slow copies average."""
        layer = self.head.softmax_layer
        return nn.ModuleList([self.backbone] if layer is None else [self.backbone, layer])

    def make_optimizer(
        self, optimizer: Callable[[list[Any]], torch.optim.Optimizer], parameters: list[Any]
    ) -> torch.optim.Optimizer:
        """An optimizer, capturable if the step is to be captured."""
        if not callable(optimizer):
            raise InvalidInput(
                f"optimizer must be a function from parameters to an optimizer, such as "
                f"torch.optim.SGD, got {optimizer!r}"
            )
        made = optimizer(parameters)
        for group in made.param_groups if self.capture else ():
            if "capturable" in group:
                group["capturable"] = True
            if {"betas", "fused"} <= group.keys() and group["foreach"] is None:
                group["fused"] = True  # Adam or AdamW in one kernel
        return made

    @property
    def optimizer(self) -> Any:
        """The optimizer of the training, or None."""
        return self.training.optimizer

    @property
    def has_work(self) -> bool:
        """Whether the work on a chunk is more than a forward pass."""
        return self.optimizer is not None or self.head.at_once

    @property
    def follows_last(self) -> bool:
        """Whether nothing can fail after the slow copies have followed the network."""
        return self.head.at_once and self.device.type != "cuda"

    @property
    def replay(self) -> Any:
        """The replay of the training, or None."""
        return self.training.replay

    @property
    def classes_(self) -> Array:
        """Classes 0 to K - 1."""
        return np.arange(self.head.n_classes)

    def __repr__(self) -> str:
        names = (type(each).__name__ for each in (self.backbone, self.head, self.training))
        return f"{type(self).__name__}({', '.join(names)}, n_seen_={self.n_seen_})"

    def __sklearn_is_fitted__(self) -> bool:
        return self.n_seen_ > 0

    # ---- the chunk protocol ---------------------------------------------------------------------

    def step(self, rows: Tensor, labels: Tensor) -> Outcome:
        """Predict a chunk of rows on the device, then learn it.

        If an error is raised, the learner is unchanged, with its network and all generators.
        """
        outcome = ChunkStep(self, rows, labels).run()
        assert outcome is not None
        return outcome

    def _inputs(self, rows: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        """Rows, labels and all further inputs of the gradient steps, random draws included."""
        if not (self.capture and self.head.checks_captured):
            labels = self.head.checked(labels, len(rows))  # a captured filter checks them itself
        rows = self._as_network(rows)
        return rows, labels, *self.training.inputs(rows, labels)

    def _work(
        self, inputs: tuple[Tensor, ...], predicts: bool, side: torch.cuda.Stream | None = None
    ) -> Work:
        """Predict, train and, with a stack, observe.

        It may be captured as a CUDA graph, so it draws no random numbers and never waits for the
        device. Then a stack is read out on the stream ``side``, beside the training.
        """
        if self.head.at_once:
            return self._work_of_stack(inputs, side)
        rows, labels = inputs[:2]
        prediction = self._predicted(rows, labels) if predicts else None
        self.training.run(self, *inputs)
        self._follow()
        shown, named = self.training.shown(*inputs)
        features = self._read(torch.cat(shown)) if self.head.needs_features else None
        return Work(prediction, None, features, torch.cat(named))

    def _work_of_stack(self, inputs: tuple[Tensor, ...], side: torch.cuda.Stream | None) -> Work:
        rows, labels = inputs[:2]
        own = self._own_output(rows)  # first: training changes the network
        beside = None if self.training.reads_head else side
        with _on(beside):
            outputs = self._outputs(rows, own)
            if beside is not None:
                prediction, experts, sound = self.head.predict_then_observe(outputs, labels)
        self.training.run(self, *inputs)
        if beside is not None:
            torch.cuda.current_stream().wait_stream(beside)
        else:  # last: if the training fails, the stack is unchanged
            prediction, experts, sound = self.head.predict_then_observe(outputs, labels)
        if self.follows_last:
            _Checked(sound, self.n_seen_).end()
        self._follow()
        return Work(prediction, experts, sound=sound)

    def _predicted(self, rows: Tensor, labels: Tensor) -> Prediction:
        """Log-probabilities of the labels (b,), and most probable classes (b,)."""
        features = self._read(rows)
        with torch.no_grad():
            scores = self.head.scores(features)
            return Prediction(self.head.log_prob(features, labels), scores.argmax(1))

    def _follow(self) -> None:
        """Move slow copies towards the network."""
        if self.slow is not None:
            self.slow.follow(self._network())

    def _observe(self, made: Work) -> Observation:
        """Start what the head has still to learn after the work."""
        if made.sound is not None:
            return _Checked(made.sound, self.n_seen_)
        assert made.labels is not None
        return self.head.begin(made.features, made.labels)

    def _count(self, rows: Tensor, labels: Tensor) -> None:
        """Add a learned chunk to the replay memory and to the number of rows."""
        if self.replay is not None:
            self.replay.add(rows, labels)
        self.n_seen_ += len(labels)

    def descend(self, loss: Callable[[], Tensor]) -> None:
        """Take one gradient step on a loss."""
        self.optimizer.zero_grad(set_to_none=True)
        with torch.enable_grad():
            loss().backward()
        if self.ranks is not None:
            self.ranks.reduce_(self.backbone)
        self.optimizer.step()

    def follow_averages(self, rows: Tensor) -> None:
        """Update running averages with batch_norm="running" if no gradient step does so."""
        if self.batch_norm == "running" and not self.tunes:
            self.features(rows, grad=False, train=True)

    def _is_capturing(self) -> bool:
        return self.device.type == "cuda" and torch.cuda.is_current_stream_capturing()

    # ---- features ----------------------------------------------------------------------------

    def features(self, rows: Tensor, *, grad: bool, train: bool = False) -> Tensor:
        """Features (b, m) of the network itself; with ``train`` its running averages move."""
        self.backbone.train(grad or train)
        if self.batch_norm in ("train", "fixed"):
            for module in self.backbone.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.train(self.batch_norm == "train")
        return self._features(self.backbone, rows, grad)

    def _read(self, rows: Tensor) -> Any:
        """What the head predicts from: features (b, m), or, for a stack, the outputs."""
        if self.head.at_once:
            return self._outputs(rows, self._own_output(rows))
        if self.slow is None:
            return self.features(rows, grad=False)
        return self._features(next(iter(self.slow.networks[-1])), rows)

    def _own_output(self, rows: Tensor) -> NetworkOutput:
        """Features of the network, and the logits of its layer."""
        features = self.features(rows, grad=False)
        layer = self.head.softmax_layer
        with torch.no_grad():
            return NetworkOutput(features, None if layer is None else layer(features).mean)

    def _outputs(self, rows: Tensor, own: NetworkOutput) -> list[NetworkOutput]:
        """Output of the network, and of each slow copy."""
        outputs = [own]
        for backbone, *layer in () if self.slow is None else self.slow.networks:
            features = self._features(backbone, rows)
            with torch.no_grad():
                outputs.append(NetworkOutput(features, layer[0](features).mean if layer else None))
        return outputs

    def _features(self, network: nn.Module, rows: Tensor, grad: bool = False) -> Tensor:
        if rows.is_cuda and rows.ndim == 4:
            rows = rows.contiguous(memory_format=torch.channels_last)
        mixed: AbstractContextManager[object] = nullcontext()
        if self.autocast is not None:
            mixed = torch.autocast(self.device.type, self.autocast)
        try:
            with torch.set_grad_enabled(grad), mixed:
                features = self._computed(network, rows)
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
        except RuntimeError as error:
            if self._is_capturing() or "CUDA" in str(error):
                raise
            raise InvalidInput(
                f"the backbone cannot take {len(rows)} rows of shape {tuple(rows.shape[1:])} "
                f"({error}); give rows with the columns that it was made for"
            ) from error
        if not isinstance(features, torch.Tensor):
            raise InvalidInput(
                f"the backbone must return a tensor of features (b, m), got "
                f"{type(features).__name__}; wrap it in a module that returns one"
            )
        if not self._is_capturing() and not bool(torch.isfinite(features).all()):
            raise InvalidInput(
                "the backbone returned NaN or infinity: it has diverged, or its input is too "
                "large; lower its learning rate, or restore a checkpoint (the posterior is "
                "unchanged)"
            )
        return features

    def _computed(self, network: nn.Module, rows: Tensor) -> Tensor:
        if self.ranks is None:
            return network(rows)
        return self.ranks.gather(network(self.ranks.own(rows)), len(rows))

    # ---- scikit-learn's methods ----------------------------------------------------------

    def partial_fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Learn a chunk of rows (b, ...) with labels (b,), 0 to K - 1.

        Rows whose label is missing (None or NaN) are left out: they change nothing.
        """
        rows, (labels, known) = self._rows(X), self._as_labels(y)
        if len(rows) != len(known):
            raise InvalidInput(f"y has {len(known)} labels for the {len(rows)} rows of X")
        if known.all():
            ChunkStep(self, rows, labels, predicts=False).run()
        elif known.any():
            there = torch.from_numpy(known).to(self.device)
            ChunkStep(self, rows[there], labels, predicts=False).run()
        return self

    def predict_proba(self, X: ArrayLike) -> Array:
        """Class probabilities (b, K), exact."""
        return self.head.probabilities(self._read(self._rows(X))).double().cpu().numpy()

    def predict(self, X: ArrayLike) -> Array:
        """Most probable class of each row (b,)."""
        with torch.no_grad():
            return self.head.scores(self._read(self._rows(X))).argmax(1).cpu().numpy()

    def _rows(self, X: ArrayLike) -> Tensor:
        rows = self.preprocess(np.asarray(X))
        if not isinstance(rows, torch.Tensor):
            raise InvalidInput(f"preprocess must return a torch tensor, got {type(rows).__name__}")
        rows = self._as_network(rows)
        if not bool(torch.isfinite(rows).all()):  # NaN would stay in the running averages
            row = int((~torch.isfinite(rows)).flatten(1).any(1).nonzero()[0, 0])
            raise InvalidInput(f"X holds NaN or infinity in row {row}; remove such rows")
        return rows.to(self.device)

    def _as_network(self, rows: Tensor) -> Tensor:
        """Rows with the data type of the network's numbers."""
        dtype = next((each.dtype for each in self.backbone.parameters()), rows.dtype)
        return rows.to(dtype) if rows.is_floating_point() else rows

    def _as_labels(self, y: ArrayLike) -> tuple[Tensor, Array]:
        """The labels that are known, and which of all (b,) are."""
        labels = np.asarray(y)
        known = np.ones(labels.shape[:1], bool)
        if labels.dtype.kind in "Of" and labels.ndim == 1:
            # NaN is not equal to itself.
            known = np.array([each is not None and each == each for each in labels.tolist()], bool)
            labels = np.array(labels[known].tolist())
            is_float = labels.dtype.kind == "f" and not known.all()
            if is_float and (labels == np.floor(labels)).all():
                labels = labels.astype(np.int64)  # NaN made floats of all labels
        if labels.dtype.kind not in "iu" or labels.ndim != 1:
            raise InvalidInput(
                f"labels must be integers (b,), 0 to K - 1, got {labels.shape} of {labels.dtype}; "
                "number the classes with np.unique(y, return_inverse=True)"
            )
        return torch.from_numpy(labels.astype(np.int64)).to(self.device), known

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
            "training": self.training.state_dict(),
            "slow": None if self.slow is None else self.slow.state_dict(),
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
            ((self.slow is None) != (state.get("slow") is None), "slow"),
        ):
            if differs:
                raise CheckpointError(
                    f"the checkpoint and this learner differ in {name}; make the learner as "
                    "it was when saved"
                )
        n_seen = state["n_seen"]
        if type(n_seen) is not int or n_seen < 0:
            raise CheckpointError(
                f"n_seen must be an integer of at least 0, got {check.shown(n_seen)}; use another "
                "checkpoint"
            )
        before = copy.deepcopy(self.state_dict())
        parts = [(part, dict(part.named_buffers(recurse=False))) for part in self.head.modules()]
        try:
            self._load(state)
        except Exception:
            for part, buffers in parts:  # loading may have added classes
                for name, buffer in buffers.items():
                    setattr(part, name, buffer)
            self._load(before)
            raise

    def _load(self, state: dict[str, Any]) -> None:
        if state["format"] < 4:
            rng = {"rng": state["flip_rng"]} if "flip_rng" in state else {}
            state = {**state, "slow": None, "training": {"layer": None, **rng}}
        for name in ("backbone", "head", "optimizer", "replay", "training", "slow"):
            if state[name] is not None:
                getattr(self, name).load_state_dict(state[name])
        self.n_seen_ = state["n_seen"]
        torch.set_rng_state(state["rng"].cpu())
        if state["cuda_rng"] is not None and self.device.type == "cuda":
            torch.cuda.set_rng_state(state["cuda_rng"].cpu())
        self.executors = Executors(self)  # graphs refer to the old buffers

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
                # torch packs nothing: what unpacks to more than the file would fill the memory
                unpacked = sum(each.file_size for each in archive.infolist())
                if unpacked > os.path.getsize(path):
                    raise CheckpointError(
                        f"{path} was not written by save: it unpacks to {unpacked} bytes; use "
                        "another checkpoint"
                    )
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


@contextmanager
def _on(side: torch.cuda.Stream | None) -> Iterator[None]:
    """Work on another stream, after all work on the current one; the caller joins them."""
    if side is None:
        yield
        return
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        yield


class _Checked(NamedTuple):
    """A chunk that a stack has observed within the work, if it was sound."""

    sound: Tensor
    row: int

    def end(self) -> None:
        """Wait for the device."""
        if not bool(self.sound):
            raise NumericalError(
                f"the stack could not observe the chunk at row {self.row}: features are NaN or "
                "infinite, or a filter failed; it is unchanged. Lower the learning rate, or "
                "restore a checkpoint"
            )


def _as_floats(rows: Array) -> Tensor:
    """Numbers as float32; images (b, h, w, c), uint8, as (b, c, h, w) from 0 to 1."""
    if rows.dtype.kind not in "biuf":
        raise InvalidInput(
            f"X holds {rows.dtype}, which is no number; pass preprocess=, a function from such "
            "rows to a tensor, to the learner"
        )
    if rows.dtype == np.uint8 and rows.ndim == 4:
        return torch.from_numpy(np.ascontiguousarray(rows)).permute(0, 3, 1, 2).float() / 255.0
    return torch.from_numpy(np.asarray(rows, np.float32))
