"""Every example runs from the command line and prints the numbers that it promises."""

import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
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
    assert at_once[0] > late[0] + 0.05
    assert at_once[1] < late[1]
    assert late[0] > plain[0]
    assert late[1] < plain[1] - 0.1  # judged by what was said
    assert late[1] < wrong[1] - 0.05
    missing = numbers(printed, "None passed")
    assert missing[1] > 5.0 * missing[0]
    assert numbers(printed, "left out, time given") == pytest.approx(missing, rel=0.05)
    before, after = numbers(printed, "left out, no time (wrong)")
    assert after == before


def regression(printed: str) -> None:
    last = numbers(printed, "repeating the last value: error")[0]
    ours, fixed = (
        [numbers(part, f"month {month} ") for month in (1, 2)]
        for part in printed.split("nothing forgotten")
    )
    for (error, _, in_68, in_95), (error_of_fixed, *_) in zip(ours, fixed, strict=True):
        assert error < 0.7 * error_of_fixed < 0.7 * last
        assert 0.65 < in_68 < 0.87
        assert 0.93 < in_95 < 0.98


def drift_alarm(printed: str) -> None:
    alarms = [int(rows) for rows in re.findall(r"labels .*: alarm (\d+) rows later", printed)]
    assert len(alarms) == 2
    assert max(alarms) < 50
    assert "Celsius, row 6000: no alarm" in printed  # a scale changes nothing
    before, _, _, then = numbers(printed.split("Celsius")[1], "accuracy of 300 rows before")
    assert then > before - 0.03
    assert numbers(printed, "other alarms:") == [0]
    assert numbers(printed, "alarms in the 8000 days as they are:")[0] == 0


def gaps(printed: str) -> None:
    table = re.findall(r"hours: +([\d.]+) +([\d.]+) +([\d.]+)", printed)
    before, after, of_rows = np.array(table, float).T
    assert len(table) == 7
    assert (after > before).all()
    assert (after > of_rows).all()
    wider = numbers(printed, "standard deviation:")
    assert wider == sorted(wider)
    assert wider[-1] > 2.5 * wider[0]
    assert 0.95 < numbers(printed, "in 95%:")[0] < 0.99


def keys(printed: str) -> None:
    keyed = numbers(printed, "KeyedRegressor")
    for_all, each = numbers(printed, "one for all chicks"), numbers(printed, "one for each chick")
    assert all(a < b for a, b in zip(keyed[:3], for_all, strict=False))
    assert keyed[0] < 0.6 * each[0]
    assert keyed[1] < 0.7 * each[1]
    assert keyed[3] > max(for_all[3], each[3])


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
    "regression": (regression, ["--rows", "2880"]),
    "drift_alarm": (drift_alarm, []),
    "gaps": (gaps, []),
    "keys": (keys, []),
    "heads": (heads, []),
    "images": (images, ["--rows", "300"]),
    "texts": (texts, ["--rows", "3000"]),
    "river_models": (river_models, []),
    "code_length": (code_length, []),
    "feedback": (feedback, []),
    "service": (service, []),
}


# an import of an example -> the package that it needs
NEEDED = {
    "kalstream.deep": "torch",
    "from river": "river",
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
