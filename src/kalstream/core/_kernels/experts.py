"""Compiled loops of the experts beside the filters. Import it on first use."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kalstream.core.jit import Floats, Labels, jit

Floats32 = NDArray[np.float32]

# Larger values count as this: sums of their squares are finite in float32.
LARGEST = 1e15
# Larger sample weights count as this, as in the stack.
LARGEST_WEIGHT = 10.0
# Factors of squared differences count as this at most, and a share between classes at least.
LARGEST_SCALE, LEAST_SHARE = 1e36, 1e-4
# A column of less variance, as part of its mean square, is constant but for rounding.
CONSTANT = 1e-12
# A metric of less weight sleeps, and a sleeping one keeps at least so much.
WAKES, READY = 0.05, 0.02
# Rows of the window that are looked through at once.
PIECE = 64


@jit
def judge_voices(voices: Floats, share: float, label: int, weight: float, belief: Floats) -> None:
    """Weigh voices (V, K) by the probability they gave a label; belief (V,) changes in place.

    ``share`` is the probability, at each row, that another voice becomes the best one.
    """
    n = belief.shape[0]
    top, total = -np.inf, 0.0
    for v in range(n):
        belief[v] = np.log(belief[v]) + weight * np.log(voices[v, label])
        top = max(top, belief[v])
    for v in range(n):
        belief[v] = np.exp(belief[v] - top)
        total += belief[v]
    for v in range(n):
        belief[v] = (1.0 - share) * belief[v] / total + share / n


@jit
def write_usual(counts: Floats, out: Floats) -> None:
    """Class frequencies (K,), into out, where a class has come half a time more.

    A class that has not come has what one would have that comes next: nothing depends on when
    classes are declared.
    """
    total = 0.0
    for k in range(counts.shape[0]):
        if counts[k] > 0.0:
            total += counts[k] + 0.5
    for k in range(counts.shape[0]):
        out[k] = (counts[k] + 0.5) / (total if counts[k] > 0.0 else total + 0.5)


@jit
def mix_voices(voices: Floats, belief: Floats, out: Floats) -> None:
    """Log-probabilities (K,), into out, of the average of voices (V, K)."""
    for k in range(out.shape[0]):
        mean = 0.0
        for v in range(belief.shape[0]):
            mean += belief[v] * voices[v, k]
        out[k] = np.log(mean)


# ---- neighbours ---------------------------------------------------------------------------------


@jit
def read_row(row: Floats, origin: Floats, means: Floats32, out: Floats32) -> None:
    """Write a row (d,) minus the origin into out, in float32; a missing value counts as the mean.

    The origin is NaN in a column of which no value has been learned: all values count as the mean.
    """
    for j in range(row.shape[0]):
        value = row[j] - origin[j]
        out[j] = means[j] if np.isnan(value) else min(max(value, -LARGEST), LARGEST)


@jit
def weigh_columns(
    window: Floats32, n: int, labels: Labels, counts: Floats, means: Floats32, scales: Floats32
) -> None:
    """Weigh columns by the first n rows of the window: means (d,) and scales (3, d) in place.

    The scales are factors of squared differences: 1, by the variance, and by the variance times
    the share of it that lies between classes. A constant column has the last two 0.
    """
    size, sums = counts.sum(), np.empty(counts.shape[0])
    for j in range(window.shape[0]):
        for k in range(sums.shape[0]):
            sums[k] = 0.0
        squares, between = 0.0, 0.0
        for i in range(n):
            if labels[i] >= 0:
                value = np.float64(window[j, i])
                sums[labels[i]] += value
                squares += value * value
        mean = sums.sum() / size
        for k in range(counts.shape[0]):
            if counts[k] > 0.0:
                between += counts[k] * (sums[k] / counts[k] - mean) ** 2
        total = squares - size * mean * mean
        means[j] = mean
        scales[1, j] = scales[2, j] = 0.0
        if total > CONSTANT * squares:
            scales[1, j] = min(size / total, LARGEST_SCALE)
            scales[2, j] = scales[1, j] * max(between / total, LEAST_SHARE)


@jit
def distances_in_one(
    window: Floats32, n: int, row: Floats32, scale: Floats32, out: Floats32
) -> None:
    """Squared distances (C,), into out, of a row (d,) to the first n columns of the window."""
    for i in range(n):
        out[i] = 0.0
    for j in range(row.shape[0]):
        x, u = row[j], scale[j]
        for i in range(n):
            a = window[j, i] - x
            out[i] += u * (a * a)


@jit
def distances_in_all(
    window: Floats32, n: int, row: Floats32, scales: Floats32, out: Floats32
) -> None:
    """The same in all three metrics: out is (3, C)."""
    first, second, third = out[0], out[1], out[2]
    for i in range(n):
        first[i] = second[i] = third[i] = 0.0
    for j in range(row.shape[0]):
        x, u, v, w = row[j], scales[0, j], scales[1, j], scales[2, j]
        for i in range(n):
            a = window[j, i] - x
            a *= a
            first[i] += u * a
            second[i] += v * a
            third[i] += w * a


@jit
def add_nearest(
    distances: Floats32,
    labels: Labels,
    start: int,
    stop: int,
    near: Labels,
    near_distances: Floats32,
    n_near: int,
) -> int:
    """Add rows ``start`` to ``stop`` to the nearest ones; returns how many there are now.

    near (M,) has their places, nearest first, ``n_near`` of them. A label of -1 stands for a row
    that was dropped. Of rows equally near the newer comes first. Most pieces of the window have
    no row that is near enough, which is soon seen.
    """
    most = near.shape[0]
    worst = near_distances[most - 1] if n_near == most else np.float32(np.inf)
    for end in range(stop, start, -PIECE):
        begin, closer = max(end - PIECE, start), 0
        piece = distances[begin:end]
        for i in range(piece.shape[0]):
            closer += piece[i] < worst
        for i in range(end - 1, begin - 1 if closer else end - 1, -1):
            distance = distances[i]
            if not distance < worst or labels[i] < 0:
                continue
            place = n_near if n_near < most else most - 1
            while place > 0 and near_distances[place - 1] > distance:
                near[place] = near[place - 1]
                near_distances[place] = near_distances[place - 1]
                place -= 1
            near[place], near_distances[place] = i, distance
            n_near = min(n_near + 1, most)
            if n_near == most:
                worst = near_distances[most - 1]
    return n_near


@jit
def vote(
    near: Labels,
    labels: Labels,
    weights: Floats,
    counts: Floats,
    sizes: Labels,
    pulls: Floats,
    voices: Floats,
) -> None:
    """Probabilities (S P, K), into voices: of every number of neighbours with every pull.

    From the places (n,) of the nearest rows. A pull adds so many votes to those of the neighbours,
    shared among the classes as the rows (K,) of the window are.
    """
    n_classes, n = counts.shape[0], near.shape[0]
    votes, usual, total, done = np.zeros(n_classes), np.empty(n_classes), 0.0, 0
    write_usual(counts, usual)
    for s in range(sizes.shape[0]):
        while done < min(n, sizes[s]):
            weight = weights[near[done]]
            votes[labels[near[done]]] += weight
            total += weight
            done += 1
        for p in range(pulls.shape[0]):
            for k in range(n_classes):
                voice = (votes[k] + pulls[p] * usual[k]) / (total + pulls[p])
                voices[s * pulls.shape[0] + p, k] = voice


@jit
def drop_one(labels: Labels, n: int, counts: Floats) -> None:
    """Drop the oldest row whose class is not rare, from labels (C,) and counts (K,) in place.

    Half of the window is kept for the classes in equal parts, so a burst of one class does not
    flush the rest.
    """
    n_present, size = 0, 0.0
    for k in range(counts.shape[0]):
        n_present += counts[k] > 0.0
        size += counts[k]
    kept = size / (2.0 * n_present)
    for i in range(n):
        if labels[i] >= 0 and counts[labels[i]] > kept:
            counts[labels[i]] -= 1.0
            labels[i] = -1
            return


@jit
def keep_ready(belief: Floats, fading: float, heard: Floats) -> None:
    """Let no metric fall so low, in belief (M, V), that it would not wake soon.

    ``heard`` (M,) are the largest weights of the metrics, fading from row to row.
    """
    n_metrics, n_voices = belief.shape
    whole = 0.0
    for m in range(n_metrics):
        factor = max(READY / _sum_of(belief, m), 1.0)
        for v in range(n_voices):
            belief[m, v] *= factor
            whole += belief[m, v]
    for m in range(n_metrics):
        for v in range(n_voices):
            belief[m, v] /= whole
        heard[m] = max(fading * heard[m], _sum_of(belief, m))


@jit
def _sum_of(belief: Floats, m: int) -> float:
    total = 0.0
    for v in range(belief.shape[1]):
        total += belief[m, v]
    return total


@jit
def pass_neighbours(
    rows: Floats,
    rows_labels: Labels,
    rows_weights: Floats,
    newest: Labels,
    sizes: Labels,
    pulls: Floats,
    share: float,
    sleep: tuple[int, float],
    growth: int,
    window: Floats32,
    stop: int,
    weights: Floats,
    origin: Floats,
    means: Floats32,
    scales: Floats32,
    clock: Labels,
    labels: Labels,
    counts: Floats,
    belief: Floats,
    heard: Floats,
    out: Floats,
) -> tuple[int, int]:
    """Predict each row, then put it into the window if it has a label.

    Parameters
    ----------
    rows, rows_labels, rows_weights : (b, d), (b,), (b,)
    newest : (W,) int
        Numbers of the newest rows that vote apart; the last is the most that the window keeps.
    sizes, pulls, share
        See `vote` and `judge_voices`.
    sleep : (int, float)
        A metric of little weight speaks at one row in so many only; and how fast weights fade,
        see `keep_ready`.
    growth : int
        Columns are weighed again when this part of the window is new.
    window, stop, weights, labels : (d, C), int, (C,), (C,)
        Rows of the window, ``stop`` of them, with those that were dropped.
    origin, means, scales : (d,), (d,), (3, d)
        See `read_row` and `weigh_columns`; they change in place, as all that follow do.
    clock : (2,)
        How many rows were learned, and at how many columns are weighed next.
    counts, belief, heard : (K,), (3, V), (3,)
        Rows of each class; weights of the voices in each metric; see `keep_ready`.
    out : (b, K) or (0, K)
        Log-probabilities are written here; with no room for them no row is predicted.

    Returns
    -------
    n, stop : int
        How many rows have passed, fewer than b if the window has no more room; and its rows.
    """
    # over 80 lines: the parts of a step in their order, as loops, which compile twice as fast
    capacity, n_windows = window.shape[1], newest.shape[0]
    n_metrics, n_voices = belief.shape
    n_each = sizes.shape[0] * pulls.shape[0]
    voices, trust = np.empty((belief.size, counts.shape[0])), np.empty(belief.size)
    distances, row = np.empty((n_metrics, capacity), np.float32), np.empty_like(means)
    near, near_distances = np.empty(sizes[-1], np.int64), np.empty(sizes[-1], np.float32)
    awake, speaks = np.empty(n_metrics, np.bool_), out.shape[0] > 0
    for i in range(rows.shape[0]):
        label = rows_labels[i]
        if label >= 0 and stop == capacity:
            return i, stop
        read_row(rows[i], origin, means, row)
        for m in range(n_metrics):
            awake[m] = speaks and (clock[0] % sleep[0] == 0 or heard[m] >= WAKES)
        together, done, total = awake.sum() > 1, 0, 0.0
        if together:
            distances_in_all(window, stop, row, scales, distances)
        for m in range(n_metrics):
            if not awake[m]:
                continue
            if not together:
                distances_in_one(window, stop, row, scales[m], distances[m])
            for v in range(n_voices):
                trust[done + v] = belief[m, v]
                total += belief[m, v]
            n_near, end = 0, stop
            for w in range(n_windows):
                start = max(stop - newest[w], 0) if w + 1 < n_windows else 0
                n_near = add_nearest(distances[m], labels, start, end, near, near_distances, n_near)
                own = voices[done : done + n_each]
                vote(near[:n_near], labels, weights, counts, sizes, pulls, own)
                end, done = start, done + n_each
        for v in range(done):
            trust[v] /= total
        if speaks:
            mix_voices(voices[:done], trust[:done], out[i])
        if label < 0:
            continue
        weight = min(rows_weights[i], LARGEST_WEIGHT)
        if speaks:
            judge_voices(voices[:done], share, label, weight, trust[:done])
            done = 0
            for m in range(n_metrics):
                if awake[m]:
                    for v in range(n_voices):
                        belief[m, v] = total * trust[done + v]
                    done += n_voices
            keep_ready(belief, sleep[1], heard)
        if counts.sum() >= newest[-1]:
            drop_one(labels, stop, counts)
        for j in range(row.shape[0]):
            if np.isnan(origin[j]):
                origin[j] = rows[i, j]
            window[j, stop] = row[j]
        weights[stop], labels[stop] = weight, label
        counts[label] += 1.0
        stop += 1
        clock[0] += 1
        if clock[0] >= clock[1]:
            weigh_columns(window, stop, labels, counts, means, scales)
            clock[1] = clock[0] + max(int(counts.sum()) // growth, 1)
    return rows.shape[0], stop


# ---- label chains -------------------------------------------------------------------------------


@jit
def follow(
    labels: Labels,
    n: int,
    decays: Floats,
    recent: Floats,
    pulls: Floats,
    speaks: bool,
    voices: Floats,
) -> None:
    """Probabilities (V, K), into voices, of the label behind the last n labels.

    First those of every half-life by no label, from ``recent`` (H, K); then, of every half-life
    and pull, those by the last label; then by the last two. What is by more labels is pulled to
    what is by one label less. Without ``speaks`` no label counts as the last one. A label of -1
    breaks the chain.

    ``decays`` (N, H) are the weights of labels by age.
    """
    n_lives, n_pulls, n_classes = decays.shape[1], pulls.shape[0], voices.shape[1]
    counts, totals = np.zeros((2, n_lives, n_classes)), np.zeros((2, n_lives))
    one = labels[n - 1] if speaks and n > 0 else -1
    two = labels[n - 2] if one >= 0 and n > 1 else -1
    # By turns, since each add waits for the one before it.
    sums = np.zeros((4, 2, n_classes, n_lives))
    for i in range(1, n if one >= 0 else 0):
        if labels[i - 1] != one or labels[i] < 0:
            continue
        longer = np.int64(two >= 0 and i > 1 and labels[i - 2] == two)
        own, weights = sums[i & 3, longer, labels[i]], decays[n - 1 - i]
        for h in range(n_lives):
            own[h] += weights[h]
    for h in range(n_lives):
        for k in range(n_classes):
            counts[1, h, k] = sums[:, 1, k, h].sum()
            counts[0, h, k] = sums[:, 0, k, h].sum() + counts[1, h, k]
            totals[0, h] += counts[0, h, k]
            totals[1, h] += counts[1, h, k]
    n_each = n_lives * n_pulls
    for h in range(n_lives):
        write_usual(recent[h], voices[h])
        for p in range(n_pulls):
            first = n_lives + h * n_pulls + p
            second, pull = first + n_each, pulls[p]
            for k in range(n_classes):
                voice = (counts[0, h, k] + pull * voices[h, k]) / (totals[0, h] + pull)
                voices[first, k] = voice
                voices[second, k] = (counts[1, h, k] + pull * voice) / (totals[1, h] + pull)


@jit
def pass_chain(
    rows_labels: Labels,
    rows_weights: Floats,
    rows_numbers: Labels,
    decays: Floats,
    pulls: Floats,
    share: float,
    labels: Labels,
    n: int,
    number: int,
    recent: Floats,
    belief: Floats,
    out: Floats,
) -> tuple[int, int]:
    """Predict each row from the labels before it, then learn its own.

    Parameters
    ----------
    rows_labels, rows_weights, rows_numbers : (b,)
    decays, pulls, share
        See `follow` and `judge_voices`.
    labels, n : (N,), int
        The last n labels, oldest first; they change in place.
    number : int
        The place of the row of the last of them.
    recent, belief : (H, K), (V,)
        Recent number of labels of each class, and weights of the voices; they change in place.
    out : (b, K)
        Log-probabilities are written here.

    Returns
    -------
    n, number : int
        After the last row.
    """
    most = labels.shape[0]
    voices = np.empty((belief.shape[0], out.shape[1]))
    for i in range(rows_labels.shape[0]):
        follows = n > 0 and rows_numbers[i] == number + 1
        follow(labels, n, decays, recent, pulls, follows, voices)
        mix_voices(voices, belief, out[i])
        if rows_labels[i] < 0:
            continue
        if follows:
            weight = min(rows_weights[i], LARGEST_WEIGHT)
            judge_voices(voices, share, rows_labels[i], weight, belief)
        for h in range(recent.shape[0]):
            for k in range(recent.shape[1]):
                recent[h, k] *= decays[1, h]
            recent[h, rows_labels[i]] += 1.0
        for label in (-1, rows_labels[i]):
            if label < 0 and (follows or n == 0):
                continue
            if n == most:
                for j in range(1, n):
                    labels[j - 1] = labels[j]
                n -= 1
            labels[n] = label
            n += 1
        number = rows_numbers[i]
    return n, number


# ---- linear -------------------------------------------------------------------------------------


@jit
def centre_rows(
    rows: Floats,
    labels: Labels,
    largest: float,
    reach: float,
    mean: Floats,
    counts: Floats,
    square: float,
) -> tuple[Floats, float]:
    """A constant, then the columns of each row less their mean, over their usual norm: (b, 1 + d).

    mean and counts (d,) are of the values in rows with a label before each row; they change in
    place. ``square`` is the mean square of the norms of these rows; it is returned as after them. A
    missing value, or a column without any value before, counts as the mean. A row of more than
    ``reach`` usual norms is shortened to these, also for what is learned from it.
    """
    n, d = rows.shape
    out = np.zeros((n, 1 + d))
    for i in range(n):
        own, most = 0.0, 0.0
        for j in range(d):
            most = max(most, counts[j])
            if counts[j] > 0.0 and not np.isnan(rows[i, j]):
                out[i, 1 + j] = min(max(rows[i, j], -largest), largest) - mean[j]
                own += out[i, 1 + j] ** 2
        usual = square if square > 0.0 else own
        kept = min(1.0, reach * np.sqrt(usual / own)) if own > 0.0 else 1.0
        if labels[i] >= 0:
            for j in range(d):
                if np.isnan(rows[i, j]):
                    continue
                counts[j] += 1.0
                if counts[j] == 1.0:
                    mean[j] = min(max(rows[i, j], -largest), largest)
                mean[j] += kept * out[i, 1 + j] / counts[j]
            square = usual + (kept * kept * own - usual) / max(most, 1.0)
        scale = kept / np.sqrt(usual) if usual > 0.0 else 0.0
        out[i, 0] = 1.0
        for j in range(d):
            out[i, 1 + j] *= scale
    return out, square
