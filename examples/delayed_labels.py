"""Late and missing labels.

The stream is elec2: whether the price of electricity in New South Wales is above its mean of the
last 24 hours, for each half-hour. In truth the label is known at once. Here it comes a day later,
after 48 rows (`--delay`), as the labels of credit or of returns come late. `ask` predicts a row and
keeps it; `tell` brings its label. The model then judges its half-lives and probabilities by the
predictions that it made. The example prints accuracy and log-loss, beside those of `predict_proba`
and `partial_fit`, and of two mistakes: to forget nothing, and to learn a late label with the row
that is current when it comes. The first line shows what the delay costs: the label of half an hour
ago says much about the next one, and the label of yesterday says little.

Then labels are missing for a while, and the uncertainty should grow. There are two ways. Pass None
as the label, which lets time pass and learns nothing. Or pass `time=` whenever the model learns or
predicts, and leave out rows without a label. Leaving them out without `time=` is a third mistake.
"""

from __future__ import annotations

import argparse

import numpy as np

from kalstream import KalmanClassifier
from kalstream.streams.packaged import path_of


def stream(rows: int):
    """Rows (n, 6) and labels (n,), from the 20,000th half-hour on."""
    data = np.loadtxt(path_of("elec2"), delimiter=",", skiprows=20_001, max_rows=rows)
    return data[:, :-1], np.where(data[:, -1] > 0.0, "up", "down").astype(object)


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
    parser.add_argument("--rows", type=int, default=3000)
    parser.add_argument("--delay", type=int, default=48)
    options = parser.parse_args()
    X, y = stream(options.rows)

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

    half, probe = options.rows // 2, X[-200:]
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
