"""Texts whose words change: hashed words, a small network, and a stack on top.

The stream is real text that comes with Python: paragraphs of the docstrings of its standard
library. The label is the area, such as "network" or "files". Each area goes through its modules one
after the other, so the label stays while the words change. Other versions of Python have other
texts and give slightly different numbers.

Every chunk is predicted before it is learned. The example prints accuracy and log-loss over all
rows, and over the first 20 rows of each module. It compares the stack, the network's own softmax
layer (a part of the stack), and a `KalmanClassifier` on hashed words without a network. Then it
prints the weights of the experts. It needs the extra `torch`.
"""

from __future__ import annotations

import argparse
import ast
import re
import sysconfig
from pathlib import Path

import numpy as np
import torch
from sklearn.feature_extraction.text import HashingVectorizer
from torch import nn

from kalstream import KalmanClassifier
from kalstream.deep import CrossEntropy, Learner, Stack

AREAS = {
    "network": "http urllib smtplib imaplib ftplib poplib socket socketserver ssl xmlrpc wsgiref",
    "files": "tarfile zipfile mailbox pathlib shutil tempfile gzip bz2 lzma configparser json",
    "code": "unittest doctest inspect pydoc bdb pdb traceback ast dis pickletools",
    "tasks": "asyncio multiprocessing threading concurrent queue subprocess",
    "numbers": "_pydecimal statistics datetime random fractions calendar ipaddress numbers",
}
WORDS, FEATURES = 2048, 64
FEW = 256  # the time of KalmanClassifier grows with the square of the columns
CHUNK = 10
LR = 0.01  # of 0.001, 0.003, 0.01 and 0.03 the best for the layer
FIRST = 50  # rows that are learned without being scored, so that every area has come
SOON = 20  # first rows of a module, which are also scored separately


def paragraphs(module: str):
    """Paragraphs of all docstrings of a module or package; outer docstrings come first."""
    library = Path(sysconfig.get_path("stdlib"))
    for path in [*library.glob(f"{module}.py"), *sorted(library.glob(f"{module}/**/*.py"))]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                for text in re.split(r"\n\s*\n", ast.get_docstring(node) or ""):
                    if len(text.split()) >= 5:  # shorter ones are names and headings
                        yield text


def stream(seed: int):
    """Texts (n,), numbers of their areas (n,), and which are the first rows of a module (n,)."""
    areas = [
        [
            (text, at < SOON)
            for module in modules.split()
            for at, text in enumerate(paragraphs(module))
        ]
        for modules in AREAS.values()
    ]
    # Areas are shuffled into each other; the order within an area stays.
    labels = np.repeat(np.arange(len(areas)), [len(area) for area in areas])
    np.random.default_rng(seed).shuffle(labels)
    left = [iter(area) for area in areas]
    texts, soon = zip(*(next(left[label]) for label in labels), strict=True)
    return np.array(texts, object), labels, np.array(soon)


def hashed(texts, n_columns: int = WORDS):
    """Words of texts as columns of a tensor (n, n_columns); each row has length 1."""
    hasher = HashingVectorizer(n_features=n_columns, dtype=np.float32)
    return torch.from_numpy(hasher.transform(texts).toarray())


def network() -> nn.Module:
    """One layer of 64 features."""
    return nn.Sequential(nn.Linear(WORDS, FEATURES), nn.ReLU())


def chunks(n: int):
    """Slices of the rows after those that are not scored."""
    return [slice(start, start + CHUNK) for start in range(FIRST, n, CHUNK)]


def run_network(learner, texts, labels):
    """Log-probabilities of the labels, and which were predicted; of stack and layer, (2, n)."""
    learner.partial_fit(texts[:FIRST], labels[:FIRST])
    own = learner.head.names.index("layer")
    log_prob, predicted = [], []
    for chunk in chunks(len(labels)):
        # `step` takes tensors; `partial_fit` and `predict` call `preprocess` themselves
        said = learner.step(learner.preprocess(texts[chunk]), torch.from_numpy(labels[chunk]))
        log_prob.append(torch.stack([said.log_prob, said.experts.log_prob[own]]))
        predicted.append(torch.stack([said.predicted, said.experts.predicted[own]]))
    return torch.hstack(log_prob).numpy(), torch.hstack(predicted).numpy() == labels[FIRST:]


def run_classifier(model, X, labels):
    """The same of a classifier without a network, (n,)."""
    model.partial_fit(X[:FIRST], labels[:FIRST])
    probability = []
    for chunk in chunks(len(labels)):
        probability.append(model.predict_proba(X[chunk]))
        model.partial_fit(X[chunk], labels[chunk])
    probability, y = np.concatenate(probability), labels[FIRST:]
    own = probability[np.arange(len(y)), y]
    return np.log(np.maximum(own, 1e-15)), probability.argmax(axis=1) == y


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=6000, help="at most")
    parser.add_argument("--lr", type=float, default=LR, help="learning rate of the network")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    texts, labels, soon = (each[: options.rows] for each in stream(options.seed))
    torch.manual_seed(options.seed)
    training = CrossEntropy(lr=options.lr)
    learner = Learner(network(), Stack(FEATURES, len(AREAS)), training, preprocess=hashed)
    log_prob, right = run_network(learner, texts, labels)
    simple = run_classifier(KalmanClassifier(features="raw"), hashed(texts, FEW).numpy(), labels)
    rows = {
        "network, stack": (log_prob[0], right[0]),
        "network, its layer": (log_prob[1], right[1]),
        f"KalmanClassifier, {FEW} columns": simple,
    }
    new = soon[FIRST:]
    print(f"{len(new)} paragraphs, {new.sum()} of them among the first {SOON} of their module")
    print(" " * 31 + f"{'all rows':^18}{'new module':^18}")
    print(" " * 31 + " accuracy log-loss" * 2)
    for name, (log_prob, right) in rows.items():
        columns = [right.mean(), -log_prob.mean(), right[new].mean(), -log_prob[new].mean()]
        print(f"{name:31}" + "".join(f"{value:9.3f}" for value in columns))

    stack = learner.head
    print("at the end, weights of the experts in their mixture:")
    mixed = stack.expert_weights["mixture"]
    for name, weight in sorted(mixed.items(), key=lambda each: -each[1]):
        if weight >= 0.01:
            print(f"  {name:28}{weight:6.2f}")
    # The pools add up log-probabilities, with weights of any sign.
    shares = ", ".join(f"{name} {weight:.2f}" for name, weight in stack.weights.items())
    print(f"weights of mixture and pools: {shares}")


if __name__ == "__main__":
    main()
