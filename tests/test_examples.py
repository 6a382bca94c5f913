"""Every example runs from the command line and prints the numbers that it promises."""

import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kalstream.errors import MissingExtra

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted(path.stem for path in ROOT.glob("examples/*.py"))


def numbers(printed: str, start: str) -> list[float]:
    """Numbers after ``start`` on the first line that starts with it."""
    for line in printed.splitlines():
        if line.strip().startswith(start):
            return [float(each) for each in re.findall(r"\d+(?:\.\d+)?", line.split(start, 1)[1])]
    raise AssertionError(f"no line starts with {start!r} in\n{printed}")


def tabular_drift(printed: str) -> None:
    ours = numbers(printed, "kalstream, linear features")
    fixed = numbers(printed, "kalstream, nothing forgotten")
    sgd = numbers(printed, "SGD, default rate")
    assert ours[0] > 0.85  # the best possible accuracy is 0.907
    assert ours[4] > fixed[4] + 0.1
    assert ours[4] > sgd[4] - 0.01
    assert ours[5] < min(fixed[5], sgd[5]) - 0.1


def new_classes(printed: str) -> None:
    phases = [numbers(printed, f"0 to {digit} ") for digit in range(3, 10)]
    assert min(stream for stream, *_ in phases) > 0.8
    assert all(uncertainty > 1.0 for _, _, uncertainty, *_ in phases[:-1])
    coming, known = ([phase[at] for phase in phases[:-1]] for at in (3, 4))
    assert sum(coming) / 6 > sum(known) / 6 + 0.2
    usual, negative = numbers(printed, "is_novel:")
    assert usual < 0.1
    assert negative > usual + 0.1
    assert numbers(printed, "0 retired, classes left:") == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    before, after = numbers(printed, "accuracy of the others:")
    assert after > before - 0.02
    before, after = numbers(printed, "zeros left undecided:")
    assert after > before + 0.5


def delayed_labels(printed: str) -> None:
    at_once = numbers(printed, "no delay, for comparison")
    late = numbers(printed, "ask and tell")
    plain = numbers(printed, "predict_proba and partial_fit")
    wrong = numbers(printed, "learned with the wrong row")
    assert at_once[0] > late[0]
    assert at_once[1] < late[1]
    assert late[0] > plain[0]
    assert late[1] < plain[1] - 0.1  # judged by what was said
    assert late[1] < wrong[1] - 0.05
    missing = numbers(printed, "None passed")
    assert missing[1] > 5.0 * missing[0]
    assert numbers(printed, "left out, time given") == missing
    before, after = numbers(printed, "left out, no time (wrong)")
    assert after == before


def regression(printed: str) -> None:
    ours, fixed = printed.split("nothing forgotten")
    parts = ("at first", "new curve, first 200 rows", "new curve, later", "new noise, later")
    at_first, soon, later, noise = (numbers(ours, part) for part in parts)
    for _, _, in_68, in_95 in (at_first, later, noise):
        assert 0.55 < in_68 < 0.87
        assert 0.90 < in_95 < 0.995
    soon_fixed, later_fixed = (numbers(fixed, part) for part in parts[1:3])
    assert soon[3] > soon_fixed[3] + 0.1
    assert later[0] < 0.6 * later_fixed[0]
    (std, truth) = numbers(ours, "noise: std")
    assert 0.75 * truth < std < 1.25 * truth


def drift_alarm(printed: str) -> None:
    alarms = re.findall(r"jump at row \d+: alarm (\d+) rows later", printed)
    assert len(alarms) >= 2  # of 3
    _, other = re.search(r"slow turn: (\d+); other alarms: (\d+)", printed).groups()
    assert int(other) <= 2
    false = re.search(r"rows without drift: (\d+)", printed).group(1)
    assert int(false) <= 4


def images(printed: str) -> None:
    accuracy, log_loss, of_layer, log_loss_of_layer = numbers(printed, "all rows")
    assert accuracy > of_layer
    assert log_loss < log_loss_of_layer
    accuracy, log_loss, of_layer, log_loss_of_layer = numbers(
        printed, "first 100 rows after a change"
    )
    assert accuracy > of_layer + 0.05
    assert log_loss < log_loss_of_layer - 0.2
    assert "weights of mixture and pools: mixture " in printed


def texts(printed: str) -> None:  # the texts are those of this version of Python
    stack, layer = numbers(printed, "network, stack"), numbers(printed, "network, its layer")
    classifier = numbers(printed, "KalmanClassifier, 256 columns")
    assert min(stack[0], layer[0], classifier[0]) > 0.4  # the largest area has 0.23 of the rows
    assert stack[1] < layer[1] + 0.02
    assert stack[3] < layer[3] + 0.02
    assert stack[1] < classifier[1]


def heads(printed: str) -> None:
    names = ("Stack", "SoftmaxHead", "KalmanHead ", "KalmanHead, softmax", "MixtureHead ")
    names += ("MixtureHead, softmax", "OnlineLearner, softmax")
    accuracy = [numbers(printed, name)[0] for name in names]
    assert min(accuracy) > max(accuracy) - 0.05  # chance is 0.1
    assert numbers(printed, "ER++, AdamW, 1,000 rows")[0] > max(accuracy) - 0.08
    assert numbers(printed, "ER++, as published")[0] < max(accuracy) - 0.05


def river_models(printed: str) -> None:
    ours, colours = numbers(printed, "kalstream "), numbers(printed, "kalstream, colours only")
    assert ours[0] > 0.85
    assert ours[0] > colours[0] > 0.7  # chance is 1 in 7
    for name in ("softmax regression", "Gaussian naive Bayes", "Hoeffding adaptive tree"):
        accuracy, log_loss = numbers(printed, name)
        assert ours[0] > accuracy
        assert ours[1] < log_loss


def code_length(printed: str) -> None:
    table = printed.splitlines()[1:-1]
    bits = [float(line.split()[-2]) for line in table]
    assert len(bits) == 5
    assert bits == sorted(bits)
    assert bits[0] < 0.6 * 4000  # a coin needs a bit for each day
    assert table[-1].startswith("half-life of 69 days")
    chosen = re.search(r"^chosen: (.*);", printed, re.MULTILINE)[1]
    assert table[0].startswith(f"{chosen} ")


def feedback(printed: str) -> None:
    draws, greedy = numbers(printed, "Thompson sampling"), numbers(printed, "greedy")
    assert min(draws[1], greedy[1]) > 0.4  # chance is 0.1
    assert draws[4] > greedy[4] + 0.2  # the new names are found


def service(printed: str) -> None:
    accuracy, log_loss = numbers(printed, "service")
    for name in ("no_change", "majority"):
        assert accuracy > numbers(printed, name)[0] + 0.2
        assert log_loss < numbers(printed, name)[1] - 0.2
    assert "359 rows scored, 20 wait" in printed  # the first 21 came before the first label
    before = numbers(printed, "malignant, before the new start:")
    assert numbers(printed, "malignant, after it:") == before


CHECKS: dict[str, tuple[Callable[[str], None], list[str]]] = {
    "tabular_drift": (tabular_drift, ["--rows", "4000"]),
    "new_classes": (new_classes, ["--rows", "500"]),
    "delayed_labels": (delayed_labels, ["--rows", "2000"]),
    "regression": (regression, ["--rows", "3000"]),
    "drift_alarm": (drift_alarm, []),  # the alarm first needs a thousand rows without drift
    "heads": (heads, []),
    "images": (images, ["--rows", "300"]),
    "texts": (texts, ["--rows", "3000"]),
    "river_models": (river_models, []),
    "code_length": (code_length, []),
    "feedback": (feedback, []),
    "service": (service, []),
}


# a module that an example imports -> the package that the module needs
NEEDED = {
    "kalstream.deep": "torch",
    "kalstream.compat.river": "river",
    "kalstream.serve": "fastapi",
}


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name != "time_series"])
def test_example(name: str, tmp_path: Path) -> None:  # time_series: see test_docs.py
    assert name in CHECKS, f"examples/{name}.py has no check here"
    check, options = CHECKS[name]
    script = ROOT / f"examples/{name}.py"
    for module, needed in NEEDED.items():
        if module in script.read_text():
            pytest.importorskip(needed)
    picture = tmp_path / "figure.png"
    if "--plot" in script.read_text():
        options = [*options, "--plot", str(picture)]
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script), *options],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    check(done.stdout)
    assert picture.exists() == ("--plot" in options)
    assert [path for path in tmp_path.iterdir() if path != picture] == []


@pytest.mark.parametrize("name", ["drift_alarm", "regression", "time_series"])
def test_a_figure_without_matplotlib_names_the_extra(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def missing(module: str) -> None:
        raise ModuleNotFoundError(f"No module named {module!r}", name="matplotlib")

    monkeypatch.setattr("kalstream._optional.import_module", missing)
    monkeypatch.setattr(sys, "argv", [name, "--plot", str(tmp_path / "figure.png")])
    with pytest.raises(MissingExtra, match=r"pip install 'kalstream\[figures\]'"):
        runpy.run_path(str(ROOT / f"examples/{name}.py"), run_name="__main__")
