"""What the README and the examples say is what happens."""

import inspect
import re
import runpy
import sys
from pathlib import Path

import pytest

import kalstream
from kalstream import core

ROOT = Path(__file__).parents[1]


def test_readme_code_prints_what_the_readme_says(capsys: pytest.CaptureFixture[str]) -> None:
    readme = (ROOT / "README.md").read_text()
    code = re.search(r"```python\n(.*?)```", readme, re.DOTALL).group(1)
    exec(compile(code, "README.md", "exec"), {})
    assert f"It prints `{capsys.readouterr().out.strip()}`" in readme

    fixed = code.replace("KalmanClassifier(random", "KalmanClassifier(1.0, random")
    exec(fixed.replace("model.drift().since", "0"), {})  # a fixed gamma has no alarm
    accuracy = re.search(r"accuracy ([0-9.]+),", capsys.readouterr().out).group(1)
    assert f"gets {accuracy}." in readme.replace("\n", " ")


def test_time_series_example(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    picture = tmp_path / "figure.png"
    monkeypatch.setattr(sys, "argv", ["time_series.py", "--plot", str(picture)])
    runpy.run_path(str(ROOT / "examples" / "time_series.py"), run_name="__main__")
    printed = capsys.readouterr().out
    learned, _, fixed = re.findall(r"(-?[0-9.]+)$", printed, re.MULTILINE)[:3]
    assert f"{learned} against {fixed}" in (ROOT / "README.md").read_text().replace("\n", " ")
    assert picture.stat().st_size > 10_000


def test_every_public_name_of_the_core_is_documented() -> None:
    for name in core.__all__:
        assert getattr(core, name).__doc__, name


def test_every_equation_has_a_function() -> None:
    table = (ROOT / "src/kalstream/core/README.md").read_text()
    for number in range(1, 16):
        assert re.search(rf"\({number}\)", table), f"eq. ({number})"
    for module, name in re.findall(r"`(\w+)\.(\w+)[`(]", table):
        if name != "py" and (ROOT / f"src/kalstream/core/{module}.py").exists():
            source = (ROOT / f"src/kalstream/core/{module}.py").read_text()
            assert re.search(rf"(def|class) {name}\b", source), f"{module}.{name}"


def test_numbers_of_the_streams_are_those_of_the_benchmark() -> None:
    readme = (ROOT / "README.md").read_text()
    pages = (ROOT / "benchmarks" / "README.md", ROOT / "docs" / "benchmarks.md")
    page = "".join(path.read_text() for path in pages)
    section = readme.split("## On real streams")[1].split("## ")[0]
    numbers = re.findall(r"\d\.\d{4}|\d+\.\d+x", section)
    assert len(numbers) >= 20
    assert not [number for number in numbers if number not in page]


def test_numbers_of_the_packaged_stream_are_those_of_the_benchmark() -> None:
    lead = (ROOT / "README.md").read_text().split("![")[0]
    accuracy, no_change = re.findall(r"0\.\d{4}", lead)
    page = (ROOT / "benchmarks" / "README.md").read_text().split("## Runs")[1]
    assert re.search(rf"elec2, .* {accuracy} / .* {no_change} /", page)


def test_every_public_method_of_the_estimators_has_an_example() -> None:
    for cls in (kalstream.KalmanClassifier, kalstream.KalmanRegressor):
        own = [base for base in cls.__mro__ if base.__module__.startswith("kalstream")]
        methods = {name: value for base in own for name, value in vars(base).items()}
        for name, value in methods.items():
            function = getattr(value, "__func__", value)
            if inspect.isfunction(function) and not name.startswith("_"):
                assert ">>>" in (function.__doc__ or ""), f"{cls.__name__}.{name}"
