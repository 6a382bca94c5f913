"""In river: the classifier beside river's models, in a pipeline and with river's metrics.

The stream is river's ImageSegments: pieces of outdoor photographs of seven kinds, each
described by 18 numbers. Rows are dicts. Each is predicted before it is learned. kalstream's
classifier is used alone, and behind a step of river that keeps only the colours.

The example prints accuracy and log-loss of each model, without the rows whose kind is new. It needs
the extra `river`.
"""

from __future__ import annotations

import argparse

from river import compose, linear_model, metrics, naive_bayes, preprocessing, tree
from river.datasets import ImageSegments

from kalstream.compat.river import KalmanClassifier

COLOURS = ("rawred-mean", "rawblue-mean", "rawgreen-mean", "hue-mean", "saturation-mean")


def models(seed: int):
    """Models by name; those of river get scaled columns where they need them."""
    return {
        "kalstream": KalmanClassifier(seed=seed),
        "kalstream, colours only": compose.Select(*COLOURS) | KalmanClassifier(seed=seed),
        "softmax regression": preprocessing.StandardScaler() | linear_model.SoftmaxRegression(),
        "Gaussian naive Bayes": naive_bayes.GaussianNB(),
        "Hoeffding adaptive tree": tree.HoeffdingAdaptiveTreeClassifier(seed=seed),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    print(f"{options.rows} rows, one at a time:       accuracy log-loss")
    for name, model in models(options.seed).items():
        accuracy, log_loss = metrics.Accuracy(), metrics.CrossEntropy()
        for row, label in ImageSegments().take(options.rows):
            probabilities = model.predict_proba_one(row)
            if label in probabilities:
                accuracy.update(label, max(probabilities, key=probabilities.get))
                log_loss.update(label, probabilities)
            model.learn_one(row, label)
        print(f"{name:32}{accuracy.get():9.3f}{log_loss.get():9.3f}", flush=True)


if __name__ == "__main__":
    main()
