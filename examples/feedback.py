"""Learning from feedback alone: choose an action, and hear only whether it was right.

Each row is one of scikit-learn's handwritten digits, and the action is to name it. The only
feedback is a reward: 1 if the name was right, else 0. From the middle on, each digit has a new
name: the next one. A regressor for each action predicts its reward from the image.

Thompson sampling draws a reward for each action and takes the best draw. The draws spread as much
as the expected reward is uncertain, so actions that are little known are tried. This costs rewards
at first. The greedy learner always takes the action with the best expected reward, and rarely tries
the new names.

The example prints the share of right actions in each fifth of the rows.
"""

from __future__ import annotations

import argparse

import numpy as np
from sklearn.datasets import load_digits

from kalstream import KalmanRegressor

ACTIONS = 10


def stream(rows: int, seed: int):
    """Images (n, 64), and the right action of each (n,)."""
    images, digits = load_digits(return_X_y=True)
    drawn = np.random.default_rng(seed).integers(len(digits), size=rows)
    moved = np.arange(rows) >= rows // 2
    return images[drawn], (digits[drawn] + moved) % ACTIONS


def rewards(X, right, spread: float, seed: int):
    """Reward of each row (n,), if draws have so many times the uncertainty of the mean."""
    rng = np.random.default_rng(seed)
    models = [KalmanRegressor(features="scaled", noise_var=0.05) for _ in range(ACTIONS)]
    for action, model in enumerate(models):  # each is tried once
        model.partial_fit(X[action : action + 1], [float(right[action] == action)])
    reward = np.zeros(len(X))
    for row in range(ACTIONS, len(X)):
        image = X[row : row + 1]
        said = [model.predict(image, return_std=True) for model in models]
        mean, std = (np.array([each[part].item() for each in said]) for part in (0, 1))
        of_mean = np.sqrt(np.maximum(std**2 - 0.05, 0.0))  # without the noise of the reward
        action = int(np.argmax(mean + spread * of_mean * rng.normal(size=ACTIONS)))
        reward[row] = action == right[row]
        models[action].partial_fit(image, reward[row : row + 1])
    return reward


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    X, right = stream(options.rows, options.seed)
    print("right actions in each fifth of the rows; new names in the middle of the third")
    for name, spread in {"Thompson sampling": 1.0, "greedy": 0.0}.items():
        fifths = np.array_split(rewards(X, right, spread, options.seed), 5)
        print(f"{name:18}" + "".join(f"{fifth.mean():8.3f}" for fifth in fifths), flush=True)


if __name__ == "__main__":
    main()
