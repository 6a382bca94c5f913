"""A model by key whose keys are in several processes, and streams of batches for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Self

from kalstream.core import checks as check
from kalstream.distributed.places import OnRay
from kalstream.errors import InvalidInput
from kalstream.estimators import KeyedClassifier, KeyedRegressor
from kalstream.features.frames import as_table


class Keyed:
    """A `KeyedClassifier` or `KeyedRegressor` whose keys are in workers of Ray.

    It has the methods and attributes of the model. Predictions are those of one process, bit for
    bit, with any number of workers, and also if workers are lost.

    Parameters
    ----------
    model : KeyedClassifier or KeyedRegressor, optional
        What to begin with, fitted or not; it stays as it is. None: ``KeyedClassifier()``.
    shards, address, folder, every, cpus
        As of `kalstream.distributed.OnRay`.

    Attributes
    ----------
    model : KeyedClassifier or KeyedRegressor
        The model that learns. ``model.spread(None)`` brings its keys into this process.

    Examples
    --------
    >>> from kalstream import KeyedClassifier
    >>> from kalstream.distributed import Keyed
    >>> with Keyed(KeyedClassifier(), shards=2) as model:  # doctest: +SKIP
    ...     model.partial_fit([[1.0], [-1.0]], ["up", "down"], ["a", "b"])
    ...     model.predict_proba([[2.0]], ["a"])
    ...     model.save("model.safetensors")
    """

    def __init__(
        self,
        model: KeyedClassifier | KeyedRegressor | None = None,
        shards: int = 2,
        address: str | None = None,
        folder: str | None = None,
        every: int = 1_000_000,
        cpus: float = 1.0,
    ) -> None:
        model = KeyedClassifier() if model is None else model
        check.instance("model", model, KeyedClassifier | KeyedRegressor)
        self.model = model.spread(OnRay(shards, address, folder, every, cpus))

    def run(
        self, batches: Any, *, key: str, target: str, batch_size: int = 10_000
    ) -> Iterator[Any]:
        """Predict each batch, then learn it; an iterator over the predictions, in order.

        One batch is read when the predictions of the one before it have been taken. In a batch,
        the model of all keys learns a piece while workers pass the piece before it.

        Parameters
        ----------
        batches : iterable of frames, or a dataset of Ray Data
            With the columns ``key`` and ``target``; all others are features. A dataset is read in
            its order: set ``preserve_order`` of its execution options if transforms precede.
        key, target : str
            Names of columns.
        batch_size : int
            Rows of a batch of a dataset.

        Examples
        --------
        >>> with Keyed(shards=2) as model:  # doctest: +SKIP
        ...     for probabilities in model.run(
        ...         ray.data.read_parquet("rows"), key="customer", target="buys"
        ...     ):
        ...         ...
        """
        if hasattr(batches, "iter_batches"):
            batches = batches.iter_batches(batch_size=batch_size, batch_format="pyarrow")
        if not isinstance(batches, Iterable):
            raise InvalidInput(
                f"batches is {check.shown(batches)}; give frames, or a dataset of Ray Data"
            )
        for batch in batches:
            rows = as_table(batch)
            missing = {key, target} - {*rows.schema.names}
            if missing:
                raise InvalidInput(
                    f"a batch has no column {min(missing)!r}; it has "
                    f"{check.shown(rows.schema.names)}"
                )
            keys, targets = rows.column(key).to_pylist(), rows.column(target).to_pylist()
            columns = [name for name in rows.schema.names if name not in (key, target)]
            yield self.model.predict_then_learn(rows.select(columns), targets, keys)

    def close(self) -> None:
        """Let the workers end; ``model`` is gone. Save it before, or ``spread(None)`` it."""
        del self.model

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        if name == "model":
            raise InvalidInput("this Keyed is closed; make another one")
        return getattr(self.model, name)
