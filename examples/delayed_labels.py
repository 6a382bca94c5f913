"""Late and missing labels.

Each row is predicted when it arrives, and its label comes `--delay` rows later. `ask` predicts a
row and keeps it; `tell` brings its label. The model then judges its half-lives and probabilities by
the predictions that it made. The example prints accuracy and log-loss, beside those of
`predict_proba` and `partial_fit`, and of two mistakes: to forget nothing, and to learn a late label
with the row that is current when it comes. The rule turns slowly, and a mood that lasts about 20
rows shifts all labels. Judged one step ahead, models that forget fast follow the mood and look
best; a mood that was 100 rows ago says nothing.

Then labels are missing for a while, and the uncertainty should grow. There are two ways. Pass None
as the label, which lets time pass and learns nothing. Or pass `time=` whenever the model learns or
predicts, and leave out rows without a label. Leaving them out without `time=` is a third mistake.
"""

from __future__ import annotations

import argparse

import numpy as np

from kalstream import KalmanClassifier


def stream(rows: int, seed: int):
    """Rows (n, 6) and labels (n,) of a rule that makes one turn in 6000 rows, and a mood."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, 6))
    angle = 2.0 * np.pi * np.arange(rows) / 6000.0
    mood = np.zeros(rows)
    for now in range(1, rows):
        mood[now] = 0.95 * mood[now - 1] + 0.3 * rng.normal()
    score = np.cos(angle) * X[:, 0] + np.sin(angle) * X[:, 1] + mood
    return X, np.where(score > 0.0, "up", "down").astype(object)


def ask_and_tell(model, X, y, delay):
    """Probability of each row's label (n,), if labels come after `delay` more rows."""
    found = np.full(len(y), 0.5)
    for now in range(len(y)):
        found[now] = probability(model, model.ask(X[now : now + 1]), y[now])
        if now >= delay:
            model.tell([now - delay], y[now - delay : now - delay + 1])
    return found


def predict_and_learn(model, X, y, delay, *, wrong_row=False):
    """The same with `predict_proba` and `partial_fit`: the model does not know what it said."""
    found = np.full(len(y), 0.5)
    for now in range(len(y)):
        if now > delay:
            found[now] = probability(model, model.predict_proba(X[now : now + 1]), y[now])
        if now >= delay:
            row = now if wrong_row else now - delay
            model.partial_fit(X[row : row + 1], y[now - delay : now - delay + 1])
    return found


def probability(model, answer, label):
    """The probability of a label; a half while not both are known."""
    if answer.shape[1] < 2:
        return 0.5
    return answer[0, model.classes_.tolist().index(label)]


def uncertainty_after(X, y, probe, *, clock=False, leave_out=False):
    """Mean uncertainty of the rows of a probe, after rows of which some have no label."""
    model = KalmanClassifier(features="scaled")
    for now, label in enumerate(y):
        if label is not None or not leave_out:
            time = {"time": [now]} if clock else {}
            model.partial_fit(X[now : now + 1], [label], **time)
    now = {"time": [len(y)] * len(probe)} if clock else {}
    return model.uncertainty(probe, **now).mean()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--delay", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    X, y = stream(options.rows, options.seed)

    def show(name, loop, delay, forgetting="mixture", **settings):
        model = KalmanClassifier(forgetting, features="scaled")
        found = loop(model, X, y, delay, **settings)[2 * options.delay :]
        print(f"  {name:32} {(found > 0.5).mean():.3f}   {-np.log(found).mean():.3f}")

    print(f"accuracy and log-loss, labels {options.delay} rows late")
    show("no delay, for comparison", ask_and_tell, 0)
    show("ask and tell", ask_and_tell, options.delay)
    show("predict_proba and partial_fit", predict_and_learn, options.delay)
    show("the same, nothing forgotten", predict_and_learn, options.delay, 1.0)
    show("learned with the wrong row", predict_and_learn, options.delay, wrong_row=True)

    half, probe = options.rows // 2, np.random.default_rng(1).normal(size=(200, 6))
    missing = np.concatenate([y[:half], np.full(half, None, object)])
    print(f"uncertainty before and after {half} rows without a label")
    for name, settings in {
        "None passed": {},
        "left out, time given": {"clock": True, "leave_out": True},
        "left out, no time (wrong)": {"leave_out": True},
    }.items():
        levels = [uncertainty_after(X, each, probe, **settings) for each in (y[:half], missing)]
        print(f"  {name:32} {levels[0]:.4f}   {levels[1]:.4f}")


if __name__ == "__main__":
    main()
