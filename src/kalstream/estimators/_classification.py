"""Classification: what is known about labels, the stacks, and class probabilities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kalstream.core import checks as check
from kalstream.core.checks import Targets
from kalstream.core.experts.expert import (
    STRETCH,
    Expert,
    ExpertRows,
    ExpertState,
    advance,
    all_speak,
    begun,
    watch,
)
from kalstream.core.judging import Index, LateRows, choose
from kalstream.core.predictive import METHODS
from kalstream.core.stacking import Stack, names_that_pay
from kalstream.errors import InvalidInput
from kalstream.estimators._chunk import Ahead, Chunk, LateSteps
from kalstream.estimators._learning import predict_chunk, state_of
from kalstream.estimators._model import Model
from kalstream.estimators._settings import Settings
from kalstream.estimators.labels import Labels

Array = NDArray[Any]

# An exact answer takes this much of a mixture, its lightest components, by probit: two thirds of
# them, at a cost of 0.0004 in log-loss where the whole by probit costs 0.004.
_LIGHT: Final = 0.1


@dataclass(slots=True)  # not frozen: that triples the time to make one
class Classes:
    """What is known about labels. Never changed.

    Attributes
    ----------
    labels : Labels
    counts : (K,)
        Number of rows of each class, in the order of the columns.
    stack, ordered : Stack or None
        Where a policy combines filters: the stack for any row, and the one for the next of rows
        whose labels are known in time.
    experts : {name: ExpertState}
        What experts beside the filters have learned.
    """

    labels: Labels
    counts: Array
    stack: Stack | None = None
    ordered: Stack | None = None
    experts: Mapping[str, ExpertState] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Classification:
    """Settings of a classification; see `Task`. The parameters are those of `KalmanClassifier`."""

    predictive: str
    class_weight: Any
    stacking: bool
    recent_labels: bool
    experts: tuple[Expert, ...] = ()

    def __post_init__(self) -> None:
        check.choice("predictive", self.predictive, METHODS)
        check.flag("stacking", self.stacking)
        check.flag("recent_labels", self.recent_labels)
        if self.experts and not self.stacking:
            raise InvalidInput("experts need a stack that weighs them; set stacking=True")

    @property
    def sees_columns(self) -> bool:
        """Whether chunks need their columns, since experts read them."""
        return len(self.experts) > 0

    @property
    def stretch(self) -> int:
        """Experts fall asleep, or wake, at multiples of so many rows."""
        return STRETCH if any(expert.sleeps for expert in self.experts) else 0

    def start(self) -> Classes:
        """No label is known."""
        return Classes(Labels(), np.zeros(0))

    def check(self, chunk: Chunk) -> None:
        """Refuse too few or too many labels."""
        if len(chunk.targets) != len(chunk):
            raise InvalidInput(
                f"y has {len(chunk.targets)} labels for the {len(chunk)} rows of X; "
                "give one target for each row"
            )

    def end_of_piece(self, model: Model, chunk: Chunk, start: int, settings: Settings) -> int:
        """Behind the next row whose label is new: rows before it give it no probability."""
        column, names = model.targets.labels.column, chunk.targets
        new = (i for i in range(start, len(names)) if names[i] is not None)
        return next((i + 1 for i in new if names[i] not in column), len(names))

    def read(self, model: Model, chunk: Chunk) -> tuple[Model, Chunk]:
        """The model with new labels and all counts, and the chunk with codes and weights (b,)."""
        known, weight = model.targets, chunk.weight
        labels = known.labels.with_new(chunk.targets)
        codes = labels.codes(chunk.targets)
        # A row of weight 0 is as one without a label.
        learned = codes if weight is None else np.where(weight > 0.0, codes, -1)
        before = np.zeros(len(labels.names))
        before[: len(known.counts)] = known.counts
        counts = before.copy()
        np.add.at(counts, learned[learned >= 0], 1.0)
        factor = _class_weights(self.class_weight, labels, learned, before)
        if factor is not None:
            weight = factor if weight is None else weight * factor
        targets = Classes(labels, counts, known.stack, known.ordered, known.experts)
        coded = Targets(codes, None, codes >= 0)
        read = Chunk(chunk.rows, coded, weight, chunk.gap, chunk.times, chunk.columns)
        return model.but(targets=targets), read

    def first_outlier(self, model: Model, chunk: Chunk, step: Any, settings: Settings) -> None:
        """A class cannot be far away."""

    def n_outputs(self, model: Model) -> int:
        """One output for each class."""
        return len(model.targets.labels.names)

    def learn(self, model: Model, chunk: Chunk, step: Any, settings: Settings) -> Model:
        """The model after its stacks have learned."""
        if not (self.stacking and settings.policy.combines):
            return model if model.targets.stack is None else _with_stacks(model, None, None, {})
        labels, known, ordered = _learned_labels(chunk), model.targets, None
        experts, spoken, names = self._spoken(model, chunk, step)
        stack, _ = self._grown(known.stack, step, names).learn(step, *labels, spoken=spoken[0])
        if self.recent_labels and known.ordered is not None:
            ordered = self._grown(known.ordered, step, names)
            ordered, _ = ordered.learn(step, *labels, spoken=spoken[0])
        return self._rested(model, len(chunk), stack, ordered, experts)

    def learn_and_predict(
        self, before: Model, model: Model, chunk: Chunk, step: Any, settings: Settings
    ) -> tuple[Model, Array]:
        """As `learn`, and probabilities (b, K) of each row; the stack may see recent labels."""
        if settings.transition == "chunk":
            probabilities = predict_chunk(before, chunk, settings)
            return self.learn(model, chunk, step, settings), probabilities
        known = before.state is not None
        plain = self._plain(before, step) if known else self.nothing_known(len(chunk))
        if not (self.stacking and settings.policy.combines):
            return self.learn(model, chunk, step, settings), plain
        labels, targets = _learned_labels(chunk), model.targets
        experts, (unordered, spoken), names = self._spoken(model, chunk, step)
        stack, n = self._grown(targets.stack, step, names), len(chunk)
        if not self.recent_labels:
            stack, corrected = stack.learn(step, *labels, plain=plain, spoken=unordered)
            return self._rested(model, n, stack, None, experts), corrected
        stack, _ = stack.learn(step, *labels, spoken=unordered)
        ordered, corrected = self._grown(targets.ordered, step, names).learn(
            step, *labels, plain=plain, ordered=True, spoken=spoken
        )
        return self._rested(model, n, stack, ordered, experts), corrected

    def predict(self, model: Model, ahead: Ahead, settings: Settings) -> Array:
        """Probabilities (b, K) in the order of the filter's outputs, corrected by the stack."""
        step, stack = ahead.step, model.targets.stack
        plain = self._plain(model, step)
        if not self.stacking or stack is None:
            return plain
        spoken, (speakers, _) = None, self.roles(model)
        if speakers and ahead.columns is not None:
            passing = _passing(model, ahead.columns, ahead.gap)
            n_classes = step.logit_mean.shape[2]
            _, spoken = advance(speakers, model.targets.experts, passing, n_classes)
            spoken = _unordered(speakers, spoken)
        stack = stack.with_experts(names_of(speakers))
        return stack.predict(step, plain, ordered=False, spoken=spoken)

    def new_class_proba(self, model: Model, rows: ExpertRows) -> Array:
        """Probability (b,) of a class never seen, by the first expert that expects one."""
        for expert in self.experts:
            if expert.expects_new_classes:
                n_classes = len(model.targets.labels.names)
                return expert.new_class_proba(
                    begun(expert, model.targets.experts, rows, n_classes), rows
                )
        raise InvalidInput(
            f"no expert of {[expert.name for expert in self.experts]} knows how probable a class "
            "never seen is; give experts=[..., kalstream.core.GaussianClasses()] and start again"
        )

    def new_class_ahead(self, model: Model, rows: Array, gap: Any) -> Array:
        """As `new_class_proba`, of rows (b, d) of which any could be the next."""
        columns = model.representation.seen(model.representation.columns(rows))
        return self.new_class_proba(model, _passing(model, columns, gap))

    def new_class_before(self, model: Model, chunk: Chunk, settings: Settings) -> Array:
        """As `new_class_proba`, of each row of a chunk before it is learned."""
        if settings.transition == "chunk":
            return self.new_class_ahead(model, chunk.rows, 1.0 if chunk.gap is None else chunk.gap)
        representation, columns = model.representation.scaled(chunk.rows)
        model, chunk = self.read(model, chunk)
        rows = _learning(representation.seen(columns), chunk, model.came)
        return self.new_class_proba(model, rows)

    def roles(self, model: Model) -> tuple[tuple[Expert, ...], tuple[Expert, ...]]:
        """Experts that speak now, and those that sleep: known, but no longer in the stack.

        Where labels come late all speak: rows that wait were predicted by all.
        """
        known = model.targets
        if known.stack is None or model.late is not None:
            return self.experts, ()
        heard = known.stack.experts
        if len(heard) == len(self.experts) == len(known.experts):
            return self.experts, ()
        sleeping = [
            x.sleeps and x.name not in heard and x.name in known.experts for x in self.experts
        ]
        by_role = ([], [])  # type: tuple[list[Expert], list[Expert]]
        for expert, sleeps in zip(self.experts, sleeping, strict=True):
            by_role[sleeps].append(expert)
        return tuple(by_role[0]), tuple(by_role[1])

    def _spoken(
        self, model: Model, chunk: Chunk, step: Any
    ) -> tuple[dict[str, ExpertState], tuple[Array | None, Array | None], tuple[str, ...]]:
        """States of the experts after the last rows of a model, and what those say that speak.

        Log-probabilities (b, X, K) as a stack hears them that does not use the labels just before
        a row, and all; and the names of the X experts.
        """
        speakers, sleepers = self.roles(model)
        if not self.experts or chunk.columns is None:
            return {}, (None, None), names_of(speakers)
        rows = _learning(chunk.columns, chunk, model.came - len(chunk))
        given = model.targets.experts, rows, step.logit_mean.shape[2]
        experts, spoken = advance(speakers, *given)
        experts |= watch(sleepers, *given)
        return experts, (_unordered(speakers, spoken), spoken), names_of(speakers)

    def _rested(
        self,
        model: Model,
        n: int,
        stack: Stack,
        ordered: Stack | None,
        experts: dict[str, ExpertState],
    ) -> Model:
        """The model after n rows, with stacks of the experts that speak from now on."""
        if self.stretch and model.late is None and model.came % STRETCH < n:
            stacks = [stack] if ordered is None else [stack, ordered]
            names, judged = names_of(self.experts), {x.name for x in self.experts if x.sleeps}
            if not all_speak(model.came, STRETCH):
                names = stack.experts if stack.experts != names else names_that_pay(stacks, judged)
            stack, *rest = (each.with_experts(names) for each in stacks)
            ordered = rest[0] if rest else None
        return _with_stacks(model, stack, ordered, experts)

    def _grown(self, stack: Stack | None, step: Any, names: tuple[str, ...]) -> Stack:
        """A stack of these experts, new if there was none, with room for the classes of a step."""
        n_filters, _, n_classes = step.logit_mean.shape
        if stack is None:
            return Stack.start(n_filters, n_classes, names)
        stack = stack.with_experts(names)
        return stack if len(stack.counts) == n_classes else stack.add_classes(n_classes)

    def _plain(self, model: Model, step: Any) -> Array:
        """Probabilities (b, K) of the classes known to a model, by the policy alone."""
        return step.keep_outputs(self.n_outputs(model)).class_probabilities(
            method=self.predictive, light=_LIGHT, random_state=model.seed
        )

    # ---- late labels ----------------------------------------------------------------------

    def n_known(self, chunk: Chunk) -> int:
        """Rows of a chunk that `read` returned which have a label and a weight."""
        known = chunk.targets.observed
        return int(np.count_nonzero(known if chunk.weight is None else known & (chunk.weight > 0)))

    def keeps(self, settings: Settings) -> tuple[bool, int]:
        """Whether rows are kept as a stack sees them; class frequencies and other experts."""
        return self.stacking and settings.policy.combines, 1 + len(self.experts)

    def with_columns(self, targets: Classes, n_columns: int) -> Classes:
        """What is known about labels; experts see more columns."""
        grown = {name: each.add_columns(n_columns) for name, each in targets.experts.items()}
        return replace(targets, experts=grown)

    def spread_out(
        self, chunk: Chunk, tells: Index, n: int, n_outputs: int
    ) -> tuple[Targets, Array]:
        """Labels of n events, and their weights (n,); of the events ``tells`` in a chunk."""
        labels, weight = np.full(n, -1), np.zeros(n)
        if len(chunk):
            codes, given = _learned_labels(chunk)
            labels[tells], weight[tells] = codes, np.where(codes >= 0, given, 0.0)
        return Targets(labels, None, labels >= 0), weight

    def keep(self, before: Model, rows: LateRows, seen: Array) -> Any:
        """Write the classes seen before each row that is asked for, and what experts say.

        Where labels are late an expert predicts the class frequencies. Judged by its old
        predictions, it would keep a large weight for long after a change.
        """
        events, kept, weight, targets = rows.events, rows.kept, rows.weight, rows.targets
        n_asked = len(events.slot[events.asks])
        experts, spoken = dict[str, ExpertState](), None
        if self.experts:
            codes = _learned_codes(rows)
            columns = before.representation.seen(rows.columns)
            passing = ExpertRows(columns, codes, weight, events.gap, rows.number)
            experts, spoken = advance(self.experts, before.targets.experts, passing, len(seen))
            kept.experts[:n_asked, 1:] = spoken[events.asks]
        if n_asked:
            kept.write_frequencies(events, targets, weight, seen, before.targets.counts)
            late, predicted = events.lag[events.asks] > 0.0, kept.experts[:n_asked]
            predicted[late, 1:] = predicted[late, :1]
        return experts, spoken

    def judge(
        self, before: Model, model: Model, rows: LateRows, steps: LateSteps, settings: Settings
    ) -> tuple[Model, Array]:
        """The model after its stacks have learned, and probabilities (a, K) of rows asked for."""
        events, kept, weight = rows.events, rows.kept, rows.weight
        step, by_late, judged = steps.in_order, steps.by_late, steps.judged
        experts, spoken = steps.spoken
        asked, n = events.asks, len(events)
        n_asked = len(events.slot[asked])
        width = self.n_outputs(before) if before.state is not None else 0
        late, in_order = np.zeros((n, width)), np.zeros((n, width))
        if width and n_asked:
            whole = n_asked == n
            in_order[asked] = self._plain(before, step if whole else step.take(asked))
            late[asked] = self._plain(before, by_late if whole else by_late.take(asked))
            kept.mix_experts(events, judged.shares, late)
        codes = _learned_codes(rows)
        known, stack, ordered, made = model.targets, None, None, [late, in_order]
        if self.stacking and settings.policy.combines:
            names = names_of(self.experts)
            stack = self._grown(known.stack, step, names)
            # Without recent labels the stack of rows in their order is that of any row, so far.
            begun_by = known.ordered or (None if self.recent_labels else stack)
            ordered = self._grown(begun_by, step, names)
            unordered = _unordered(self.experts, spoken)
            stack, by_stack = stack.learn(step, codes, weight, plain=in_order, spoken=unordered)
            given = codes, weight, events, judged, kept
            # Where labels are late, only those who are judged in order hear experts; see `keep`.
            in_time = (
                None if spoken is None else np.where(events.lag[:, None, None] > 0.0, 0.0, spoken)
            )
            ordered, by_late_stack = ordered.judge(
                by_late, *given, plain=late, ordered=self.recent_labels, spoken=in_time
            )
            made = [by_late_stack, late, by_stack, in_order]
        if stack is not known.stack:
            model = _with_stacks(model, stack, ordered, experts)
        assert model.late is not None
        both = np.concatenate(made, axis=1).reshape(n, len(made), width)
        judge, out = choose(model.late, rows, judged, both)
        return model.but(late=judge), out[asked]

    def together(self, parts: list[Array], n_outputs: int = 0) -> Array:
        """Probabilities (a, K) of rows in their order; 0 for classes not known before a row."""
        width = max([n_outputs, *(part.shape[1] for part in parts)])
        whole = np.zeros((sum(map(len, parts)), width))
        start = 0
        for part in parts:
            whole[start : start + len(part), : part.shape[1]] = part
            start += len(part)
        return whole

    def answers(self, model: Model, parts: list[Array]) -> Array:
        """Probabilities (a, K) of all classes, sorted."""
        return self.together(parts, self.n_outputs(model))[:, model.targets.labels.order]

    def nothing_known(self, n: int) -> Array:
        """No class has a probability (b, 0)."""
        return np.zeros((n, 0))

    def joined(self, model: Model, chunk: Chunk, parts: list[Array]) -> Array:
        """Probabilities (b, K) of all classes, sorted; 0 for those not known before a row."""
        return self.answers(model, parts)


def declared(model: Model, names: Sequence[Any]) -> Model:
    """The model with labels that may come."""
    known = model.targets
    labels = known.labels.with_new(names)
    if labels is known.labels:
        return model
    counts = np.pad(known.counts, (0, len(labels.names) - len(known.counts)))
    return model.but(targets=replace(known, labels=labels, counts=counts))


def without_class(model: Model, label: Any, settings: Settings) -> Model:
    """The model without a class, as if it had never been declared."""
    known = model.targets
    try:
        column = known.labels.column.get(label)
    except Exception:  # it has no hash, or cannot be compared
        column = None
    if column is None:
        names = ", ".join(map(repr, known.labels.classes[:10].tolist()))
        raise InvalidInput(
            f"{check.shown(label)} is not a class of this model; the classes are {names}"
        )
    if len(known.labels.names) == 1:
        raise InvalidInput(f"{label!r} is the only class; call reset() to start again")
    kept = np.delete(np.arange(len(known.labels.names)), column)
    targets = Classes(
        known.labels.without(label),
        known.counts[kept],
        _with_classes(known.stack, kept),
        _with_classes(known.ordered, kept),
        {name: _with_only(each, kept) for name, each in known.experts.items()},
    )
    state = state_of(model, settings).keep_outputs(kept)
    # What was predicted of rows that wait had a column for the class.
    store = None if model.store is None else model.store.without_predictions()
    return model.but(targets=targets, state=state, store=store)


def names_of(experts: tuple[Expert, ...]) -> tuple[str, ...]:
    """By which a stack knows experts."""
    return tuple(expert.name for expert in experts)


def _unordered(experts: tuple[Expert, ...], spoken: Array | None) -> Array | None:
    """What a stack hears that does not use the labels just before a row."""
    silent = [x for x, expert in enumerate(experts) if expert.reads_labels]
    if spoken is None or not silent:
        return spoken
    spoken = spoken.copy()
    spoken[:, silent] = 0.0
    return spoken


def _learning(columns: Array, chunk: Chunk, came: int) -> ExpertRows:
    """Rows as experts learn them, ``came`` rows after the first."""
    gap = np.ones(len(chunk)) if chunk.gap is None else chunk.gap
    number = np.arange(came, came + len(chunk))
    return ExpertRows(columns, *_learned_labels(chunk), gap, number)


def _passing(model: Model, columns: Array, gap: Any) -> ExpertRows:
    """Rows with columns (b, d) as experts predict them, where any could be the next."""
    n = len(columns)
    gap = np.broadcast_to(np.asarray(gap, np.float64), (n,))
    return ExpertRows(columns, np.full(n, -1), np.ones(n), gap, np.full(n, model.came))


def _learned_labels(chunk: Chunk) -> tuple[Array, Array]:
    """Codes (b,) of the labels that were learned, -1 for other rows, and weights (b,)."""
    labels = chunk.targets.labels
    weight = np.ones(len(chunk)) if chunk.weight is None else chunk.weight
    return np.where(weight > 0.0, labels, -1), weight


def _learned_codes(rows: LateRows) -> Array:
    """Codes (n,) of the labels that have come and are learned; -1 at other events."""
    return np.where(rows.weight > 0.0, rows.targets.arrays()[0], -1)


def _with_stacks(
    model: Model, stack: Stack | None, ordered: Stack | None, experts: dict[str, ExpertState]
) -> Model:
    known = model.targets
    return model.but(targets=Classes(known.labels, known.counts, stack, ordered, experts))


def _with_only(state: ExpertState, columns: Array) -> ExpertState:
    """The state of an expert with these classes only."""
    return state.add_classes(max(len(columns) + 1, state.n_classes)).keep_classes(columns)


def _with_classes(stack: Stack | None, columns: Array) -> Stack | None:
    """A stack with these classes only."""
    if stack is None:
        return None
    return stack.add_classes(max(len(columns) + 1, len(stack.counts))).keep_classes(columns)


def _class_weights(class_weight: Any, labels: Labels, codes: Array, counts: Array) -> Array | None:
    """Weights (b,) of rows by their class, given how often each came before."""
    if class_weight is None:
        return None
    if isinstance(class_weight, Mapping):
        each = check.non_negative_rows(
            "class_weight",
            [class_weight.get(name, 1.0) for name in labels.names],
            len(labels.names),
        )
        return np.append(each, 1.0)[codes]  # the last for rows without a label, -1
    if not isinstance(class_weight, str) or class_weight != "balanced":
        raise InvalidInput(
            f'class_weight must be a dict, "balanced" or None, got {check.shown(class_weight)}'
        )
    factor, so_far = np.ones(len(codes)), counts.copy()
    for i, code in enumerate(codes):
        if code >= 0:
            so_far[code] += 1.0
            factor[i] = so_far.sum() / (np.count_nonzero(so_far) * so_far[code])
    return factor
