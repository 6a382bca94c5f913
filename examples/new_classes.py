"""New classes that appear one after another, and one that is retired.

The stream starts with the digits 0 to 3. One more digit appears in each phase, without notice. The
embedding is a fixed random layer over scikit-learn's digits, shifted sideways by up to one pixel.
Held-out images are never learned. A digit that has not appeared yet cannot be named, but the model
is more uncertain about it (`uncertainty`) and often abstains (`predict` with `abstain_below`).
`is_novel` detects rows unlike all rows learned so far; here these are negatives of the images.
"""

from __future__ import annotations

import argparse

import numpy as np
from sklearn.datasets import load_digits

from kalstream import KalmanClassifier

CHUNK = 10
FIRST = 4  # digits in the first phase


def images_of_digits(seed: int):
    """Images (n, 8, 8) from 0 to 1, their digits (n,), and which are held out (n,)."""
    images, digits = load_digits(return_X_y=True)
    held_out = np.random.default_rng(seed).random(len(digits)) < 0.3
    return images.reshape(-1, 8, 8) / 16.0, digits, held_out


def embed(images):
    """A random layer of rectified units (n, 200); each row has a mean square of 1."""
    weights = np.random.default_rng(0).normal(size=(64, 200))
    layer = np.maximum((images.reshape(-1, 64) - 0.3) @ weights, 0.0)
    return layer / np.sqrt(np.mean(layer**2, axis=1, keepdims=True))


def undecided(model, X) -> float:
    """Share of rows for which the model abstains, as no class has a probability of 80%."""
    return np.mean([label is None for label in model.predict(X, abstain_below=0.8)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1000, help="of each phase")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    rng = np.random.default_rng(options.seed)
    images, digits, held_out = images_of_digits(options.seed)
    model = KalmanClassifier(features="raw")  # embeddings of size about 1 need no scaling
    one = np.flatnonzero(~held_out & (digits < FIRST))[:1]
    model.partial_fit(embed(images[one]), digits[one])

    print("accuracy in the stream, predicted before learned, and of the newest digit, held out;")
    print("the next digit, not seen yet: its uncertainty relative to known digits, share undecided")
    print("  known      stream   newest   uncertainty   undecided (known)")
    for n_known in range(FIRST, 11):
        rows = rng.choice(np.flatnonzero(~held_out & (digits < n_known)), options.rows)
        shifts = rng.integers(-1, 2, options.rows)
        shifted = [np.roll(images[i], by, axis=1) for i, by in zip(rows, shifts, strict=True)]
        X, y, right = embed(np.stack(shifted)), digits[rows], 0
        for start in range(0, options.rows, CHUNK):
            chunk = slice(start, start + CHUNK)
            right += np.sum(model.predict(X[chunk]) == y[chunk])
            model.partial_fit(X[chunk], y[chunk])  # a new label becomes a new class
        known = embed(images[held_out & (digits < n_known)])
        newest, coming = (embed(images[held_out & (digits == n_known - k)]) for k in (1, 0))
        accuracy = np.mean(model.predict(newest) == n_known - 1)
        line = f"  0 to {n_known - 1}   {right / options.rows:9.3f}{accuracy:9.3f}"
        if len(coming):
            more = model.uncertainty(coming).mean() / model.uncertainty(known).mean()
            line += f"{more:12.1f}x{undecided(model, coming):12.2f}"
            line += f"  ({undecided(model, known):.2f})"
        print(line)

    as_usual, negative = embed(images[held_out]), embed(1.0 - images[held_out])
    usual, unusual = model.is_novel(as_usual).mean(), model.is_novel(negative).mean()
    print(f"is_novel: {usual:.2f} of the held-out images, {unusual:.2f} of their negatives")

    rest, zero = held_out & (digits > 0), embed(images[held_out & (digits == 0)])
    before = np.mean(model.predict(embed(images[rest])) == digits[rest]), undecided(model, zero)
    model.retire_class(0)
    after = np.mean(model.predict(embed(images[rest])) == digits[rest]), undecided(model, zero)
    print(f"0 retired, classes left: {model.classes_}")
    print(f"  accuracy of the others: {before[0]:.3f}, then {after[0]:.3f}")
    print(f"  zeros left undecided:   {before[1]:.2f}, then {after[1]:.2f}")


if __name__ == "__main__":
    main()
