"""The stack against a plain version of the same equations."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kalstream.core import Mixture, MixtureStep, Stack, mixture_probabilities
from kalstream.core.bank import BankStep
from kalstream.core.stacking import HALF_LIVES, names_that_pay

CALIBRATIONS = (0.5, 2.0, 10.0)


def random_step(rng: Any, n: int, n_filters: int, n_classes: int) -> MixtureStep:
    """A step with random values."""
    moments = rng.standard_normal((n_filters, n, n_classes)), rng.exponential(size=(n_filters, n))
    nothing = np.ones((n_filters, n))
    weights = rng.dirichlet(np.ones(n_filters * 3), size=n).reshape(n, n_filters, 3)
    step = BankStep(*moments, nothing, np.ones(n), nothing)
    half_lives = tuple(10.0 ** (j + 1) for j in range(n_filters))
    return MixtureStep(
        step, weights, np.zeros(n), np.ones((n, n_filters)), half_lives, CALIBRATIONS
    )


def part_of(step: MixtureStep, rows: slice) -> MixtureStep:
    parts = (getattr(step.bank, name)[:, rows] for name in ("logit_mean", "logit_var"))
    bank = BankStep(*parts, step.bank.gamma[:, rows], step.bank.noise_var[rows], step.bank.nis)
    return replace(step, bank=bank, weights=step.weights[rows])


def softmax(z: Any) -> Any:
    return np.exp(z - z.max()) / np.exp(z - z.max()).sum()


def features_of(step: MixtureStep, i: int, past: list[int], ordered: bool) -> tuple[Any, Any]:
    """Classes that came before (A,), and their features for the regression (A, D)."""
    seen = np.unique(past)
    columns, p = [], np.zeros(len(seen))
    for j in range(len(step.half_lives)):
        mean, var, weight = step.logit_mean[j, i, seen], step.logit_var[j, i], step.weights[i, j]
        for c, alpha in enumerate(CALIBRATIONS):
            p += weight[c] * softmax(alpha * mean / np.sqrt(1 + np.pi / 8 * alpha**2 * var))
        alpha = np.exp(weight @ np.log(CALIBRATIONS) / weight.sum())
        logits = alpha * mean / np.sqrt(1 + np.pi / 8 * alpha**2 * var)
        columns.append(logits - logits.max())
    columns.insert(0, np.log(np.maximum(p, 1e-9)))
    counts = np.array([past.count(k) for k in seen])
    base_rate = (counts + 0.5) / (len(past) + 0.5 * len(seen))
    age, last = np.arange(len(past))[::-1], past[-1]
    for h in HALF_LIVES:
        recent = np.array([0.5 ** (age[np.array(past) == k] / h).astype(float) @ np.ones(c)
                         for k, c in zip(seen, counts, strict=True)])  # fmt: skip
        recent = (recent + base_rate) / (recent.sum() + 1.0)
        columns.append(np.log(recent / base_rate))
    after = [b for a, b in pairwise(past) if a == last]
    own_rate = base_rate[seen == last][0]
    stay = (after.count(last) + own_rate) / (len(after) + 1.0)
    leaves = np.log(max(1 - stay, 1e-9) / max(1 - own_rate, 1e-9))
    columns.append(np.where(seen == last, np.log(stay / own_rate), leaves))
    x = np.stack(columns, axis=1)
    if not ordered:
        x[:, -5:] = 0.0
    return seen, x


def plain_version(step: MixtureStep, plain: Any, labels: Any, weight: Any, ordered: bool) -> Any:
    """Corrected probabilities (b, K), computed from all earlier rows at each row."""
    n_filters = len(step.half_lives)
    prior = np.diag([40.0] * (1 + n_filters) + [10.0] * 5)
    start = np.zeros(len(prior))
    start[0] = 1.0
    coef, precision, belief, out = start, prior, 0.5, plain.copy()
    for i, label in enumerate(labels):
        past = [int(k) for k in labels[:i] if k >= 0]
        if not past:
            continue
        seen, x = features_of(step, i, past, ordered)
        own, now = softmax(x @ coef), 0.999 * belief + 0.0005
        out[i, seen] = (1 - now) * plain[i, seen] + now * own * plain[i, seen].sum()
        if label in seen:
            w, place = min(weight[i], 10.0), int(np.flatnonzero(seen == label)[0])
            ours, theirs = now * own[place] ** w, (1 - now) * np.exp(w * x[place, 0])
            belief = ours / (ours + theirs)
            centred = x - own @ x
            spread = (centred.T * own) @ centred
            precision = 0.9995 * precision + 0.0005 * prior + w * spread
            pull = 0.0005 * prior @ (coef - start)
            coef = coef + np.linalg.solve(precision, w * centred[place] - pull)
    return out


@settings(max_examples=60)
@given(
    n=st.integers(1, 50),
    n_filters=st.integers(1, 4),
    n_classes=st.integers(1, 5),
    runs=st.booleans(),
    missing=st.sampled_from([0.0, 0.3]),
    weighted=st.booleans(),
    ordered=st.booleans(),
    cut=st.integers(1, 50),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_stack_equals_the_plain_version(
    n, n_filters, n_classes, runs, missing, weighted, ordered, cut, seed
) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.integers(n_classes, size=n)
    if runs:
        labels = np.repeat(labels, 4)[:n]
    labels = np.where(rng.random(n) < missing, -1, labels)
    step, plain = (
        random_step(rng, n, n_filters, n_classes),
        rng.dirichlet(np.ones(n_classes), size=n),
    )
    weight = rng.uniform(0.1, 20.0, n) if weighted else np.ones(n)
    expected = plain_version(step, plain, labels, weight, ordered)
    stack = unpredicted = Stack.start(n_filters, n_classes)
    corrected = []
    for start in range(0, n, cut):  # for every size of chunks
        rows = slice(start, start + cut)
        part = part_of(step, rows)
        first_prediction = stack.predict(part, plain[rows], ordered=ordered)[0]
        np.testing.assert_allclose(first_prediction, expected[start], rtol=1e-6, atol=1e-12)
        options = {"plain": plain[rows], "ordered": ordered}
        stack, probabilities = stack.learn(part, labels[rows], weight[rows], **options)
        corrected.append(probabilities)
        unpredicted, _ = unpredicted.learn(part, labels[rows], weight[rows])
    np.testing.assert_allclose(np.concatenate(corrected), expected, rtol=1e-6, atol=1e-12)
    # Rows without a prediction update the counts, but not the coefficients of recent labels.
    np.testing.assert_array_equal(unpredicted.recent, stack.recent)
    np.testing.assert_array_equal(unpredicted.stays, stack.stays)
    assert unpredicted.last == stack.last
    assert not unpredicted.coef[-5:].any()


def test_unordered_labels_cost_almost_nothing() -> None:
    rng = np.random.default_rng(0)
    rows, weights = rng.standard_normal((10_000, 3)), rng.standard_normal((3, 4))
    noisy = 2.0 * rows @ weights + rng.gumbel(size=(10_000, 4))
    labels, policy = noisy.argmax(axis=1), Mixture()
    state = policy.start(3, 4, prior_var=1.0)
    _, step = policy.step_chunk(state, rows, labels, noise_var=0.03, prior_var=1.0)
    plain, every = mixture_probabilities(step, method="probit"), np.arange(10_000)
    _, probabilities = Stack.start(5, 4).learn(step, labels, plain=plain, ordered=True)
    gain = np.log(np.maximum(probabilities, 1e-9) / np.maximum(plain, 1e-9))[every, labels]
    assert gain[1000:].mean() > -1e-3


def test_classes_are_added_and_removed() -> None:
    rng = np.random.default_rng(0)
    labels, step = np.repeat([0, 1, 2, 0, 2, 1], 5), random_step(rng, 30, 2, 3)
    whole, _ = Stack.start(2, 3).learn(step, labels)
    first, _ = Stack.start(2, 2).learn(part_of(step, slice(0, 10)), labels[:10])
    grown, _ = first.add_classes(3).learn(part_of(step, slice(10, 30)), labels[10:])
    np.testing.assert_allclose(grown.coef, whole.coef)
    assert whole.keep_classes(np.array([0, 2])).last == -1
    left = whole.keep_classes(np.array([1, 2]))
    assert left.last == 0
    np.testing.assert_array_equal(left.counts, whole.counts[1:])
    few_rows = random_step(rng, 3, 2, 2)
    probabilities = left.predict(few_rows, np.full((3, 2), 0.5))
    assert probabilities.sum(axis=1) == pytest.approx(np.ones(3))
    without = whole.keep_classes(np.array([0, 2]))
    assert np.isfinite(without.predict(few_rows, np.full((3, 2), 0.5))).all()
    assert np.isfinite(without.learn(few_rows, np.array([0, 1, 0]), ordered=True)[0].coef).all()


def test_experts_leave_a_stack_with_the_best_coefficients_without_them() -> None:
    rng = np.random.default_rng(0)
    names = "first", "second", "third"
    stack = Stack.start(2, 3, names)
    root = rng.standard_normal((len(stack.coef), len(stack.coef)))
    coef, precision = rng.standard_normal(len(root)), root @ root.T + np.eye(len(root))
    stack = replace(stack, coef=coef, precision=precision)

    def loss(other: Any) -> float:
        return 0.5 * float((other - coef) @ precision @ (other - coef))

    for place, name in enumerate(names):
        rest = tuple(each for each in names if each != name)
        gone = len(coef) - 3 + place
        best = np.insert(stack.with_experts(rest).coef, gone, 0.0)
        assert loss(best) == pytest.approx(stack.gains[place])
        for step in 1e-3 * np.delete(rng.standard_normal((20, len(coef))), gone, axis=1):
            assert loss(best + np.insert(step, gone, 0.0)) > loss(best)
    # The gains of two that leave, one after the other, are what both bring together.
    without = stack.with_experts(("second",))
    together = stack.gains[0] + stack.with_experts(("second", "third")).gains[1]
    best = np.concatenate([without.coef[:-1], [0.0], without.coef[-1:], [0.0]])
    assert loss(best) == pytest.approx(together)
    small = replace(stack, coef=np.where(np.arange(len(coef)) < len(coef) - 3, coef, 1e-3))
    assert names_that_pay([small], {"first", "third"}) == ("second",)
    large = replace(stack, coef=10.0 * coef)
    assert names_that_pay([small, large], {"first", "third"}) == names
