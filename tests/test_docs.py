"""The documents are true: their numbers are measured, their links exist.

test_pages.py runs their code. Their words are those of the glossary in CONTRIBUTING.md.
"""

import importlib
import inspect
import pkgutil
import re
import runpy
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import kalstream
from kalstream import core

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src/kalstream"
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        PACKAGE / "core/README.md",
    ]
)
LINKING = [*PAGES, ROOT / "benchmarks" / "README.md"]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")

# pattern -> what to write instead; a space stands for any white space, and for "#" of comments
UNUSUAL = {
    r"learnt": "learned",
    r"of late": "recent, recently",
    r"(go|goes|going|gone|went) on with": "resume, continue with",
    r"cannot be gone on": "cannot be resumed",
    r"(wait|waits|say|says|know|knows|come|comes|goes) not": "does not ...",
    r"some this many": "about, or the name of the number",
    r"what (came|comes|becomes) of": "result of",
    r"(be )?had back": "restored; name the command",
    r"aloud": "prints, writes to the log",
    r"damned": "refused, excluded",
    r"for ever": "always, without limit",
    r"for good": "permanently",
    r"anew": "again",
    r"therein|thereof|whereof|whence": "in it, of it, from which",
}


def readme() -> str:
    return (ROOT / "README.md").read_text(encoding="utf-8")


def section(page: str, title: str) -> str:
    """Text below a second-level heading, up to the next one."""
    return page.split(f"\n## {title}\n")[1].split("\n## ")[0]


# ---- what a page shows is what happens ----------------------------------------------------------


def test_readme_says_what_never_forgetting_costs(capsys: pytest.CaptureFixture[str]) -> None:
    text = readme()
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL).group(1)
    fixed = code.replace("KalmanClassifier(random", "KalmanClassifier(1.0, random")
    exec(fixed.replace("model.drift().since", "0"), {})  # a fixed gamma has no alarm
    accuracy = re.search(r"accuracy ([0-9.]+),", capsys.readouterr().out).group(1)
    assert f"the accuracy is {accuracy}." in text.replace("\n", " ")


def test_time_series_example(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    picture = tmp_path / "figure.png"
    monkeypatch.setattr(sys, "argv", ["time_series.py", "--plot", str(picture)])
    runpy.run_path(str(ROOT / "examples" / "time_series.py"), run_name="__main__")
    printed = capsys.readouterr().out
    learned, _, fixed = re.findall(r"(-?[0-9.]+)$", printed, re.MULTILINE)[:3]
    guide = (ROOT / "docs" / "estimators.md").read_text(encoding="utf-8").replace("\n", " ")
    assert f"{learned} against {fixed}" in guide
    assert picture.stat().st_size > 10_000


# ---- numbers come from the benchmarks -----------------------------------------------------------


def test_measured_numbers_are_those_of_the_benchmarks() -> None:
    pages = (ROOT / "benchmarks" / "README.md", ROOT / "docs" / "benchmarks.md")
    ours, peers = (path.read_text(encoding="utf-8") for path in pages)
    which = (ROOT / "docs" / "which-learner.md").read_text(encoding="utf-8")
    # learners are chosen by the page of the peers alone
    for text, n_least, measured in (
        (section(readme(), "Measured"), 20, ours + peers),
        (which, 6, peers),
    ):
        numbers = re.findall(r"\d\.\d{4}|\d+\.\d+x", text)
        assert len(numbers) >= n_least
        assert not [number for number in numbers if number not in measured]


def test_measured_speeds_are_those_of_the_benchmarks() -> None:
    text = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| [\d(].*", section(text, "The chunk recursion"), re.MULTILINE)
    found = [re.search(r"([\d.]+)x", row.split("|")[3]) for row in rows]
    ratios = [float(each[1]) for each in found if each]
    measured = section(readme(), "Measured").replace("\n", " ")
    assert f"{min(ratios):.0f} to {max(ratios):.0f} times" in measured


def test_the_figures_of_the_method_are_drawn_by_a_script(tmp_path: Path) -> None:
    script = runpy.run_path(str(ROOT / "docs" / "site" / "figures.py"))
    script["main"](tmp_path)
    drawn = {path.name for path in tmp_path.iterdir()}
    page = (ROOT / "docs" / "method.md").read_text(encoding="utf-8")
    assert drawn == set(re.findall(r"\((method-\w+\.png)\)", page))
    for name in drawn:
        assert (tmp_path / name).stat().st_size > 10_000
        assert (ROOT / "docs" / name).stat().st_size < 100_000


def test_numbers_of_the_packaged_stream_are_those_of_the_benchmark() -> None:
    accuracy, no_change = re.findall(r"0\.\d{4}", readme().split("![")[0])
    page = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8").split("## Runs")[1]
    assert re.search(rf"elec2, .* {accuracy} / .* {no_change} /", page)


# ---- nothing public is undocumented -------------------------------------------------------------


def test_every_public_name_of_the_core_is_documented() -> None:
    for name in core.__all__:
        assert getattr(core, name).__doc__, name


def test_the_site_lists_every_public_name() -> None:
    site = runpy.run_path(str(ROOT / "docs" / "site" / "build.py"))
    modules, pages = set(site["MODULES"]), site["reference"]()
    apart = {
        "__main__",
        "cli",
        "compat",
        "serve",
    }  # commands, and a folder of kalstream.compat.river
    found = {each.name for each in pkgutil.iter_modules([str(PACKAGE)])}
    assert {f"kalstream.{name}" for name in found - apart if name[0] != "_"} <= modules
    for module in modules:
        assert f"   {module}\n" in pages["index"]
        for name in getattr(importlib.import_module(module), "__all__", ()):
            page = "index" if f"{module}.{name}" in modules else module
            assert name == "__version__" or re.search(rf"\b{name}\b", pages[page]), name
        assert site["names"](module), module


def test_the_index_links_to_the_reference() -> None:
    site = runpy.run_path(str(ROOT / "docs" / "site" / "build.py"))
    assert "[reference](../reference/index.rst)" in site["linked"](ROOT / "docs" / "index.md")


def test_every_equation_has_a_function() -> None:
    table = (PACKAGE / "core/README.md").read_text(encoding="utf-8")
    for number in range(1, 16):
        assert re.search(rf"\({number}\)", table), f"eq. ({number})"
    rows = "\n".join(line for line in table.splitlines() if line.startswith("|"))
    for module, name in re.findall(r"`(\w+)\.(\w+)[`(]", rows):
        files = [PACKAGE / f"core/{module}.py", PACKAGE / f"core/_kernels/{module}.py"]
        source = "".join(path.read_text(encoding="utf-8") for path in files if path.exists())
        assert re.search(rf"(def|class) {name}\b", source), f"{module}.{name} does not exist"


def test_every_public_method_of_the_estimators_has_an_example() -> None:
    names = "CRP", "Kalman", "Keyed"
    kinds = [getattr(kalstream, name) for name in kalstream.__all__ if name.startswith(names)]
    assert len(kinds) == 5
    for cls in kinds:
        own = [base for base in cls.__mro__ if base.__module__.startswith("kalstream")]
        methods = {name: value for base in own for name, value in vars(base).items()}
        for name, value in methods.items():
            function = getattr(value, "__func__", value)
            if inspect.isfunction(function) and not name.startswith("_"):
                assert ">>>" in (function.__doc__ or ""), f"{cls.__name__}.{name}"


def test_every_public_name_of_the_reference_has_an_example() -> None:
    site, without = runpy.run_path(str(ROOT / "docs" / "site" / "build.py")), set()
    for module in site["MODULES"]:
        for name in site["names"](module):
            value = getattr(importlib.import_module(module), name)
            is_one = inspect.isclass(value) or inspect.isroutine(value)
            if is_one and ">>>" not in (value.__doc__ or ""):
                without.add(f"{module}.{name}")
    assert not without


def test_every_target_of_make_is_in_its_help() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE).group(1).split()
    assert {"run", "test", "docs"} <= set(targets)
    for target in set(targets) - {"help"}:
        assert re.search(rf'@echo "make {target}  ', makefile), f"make {target}"


def test_layers_are_those_of_the_import_check() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    layers = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    page = section((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), "Layers")
    listed = re.search(r"lowest first: (.*?)\.\s", page, re.DOTALL).group(1)
    assert re.findall(r"`(\w+)`", listed) == [layer.strip("()") for layer in reversed(layers)]


# ---- form ---------------------------------------------------------------------------------------


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines of a page that are neither code nor rows of a table."""
    code = False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if line.lstrip().startswith("```"):
            code = not code
        elif not (code or line.startswith(("|", "    "))):
            yield number, line


def anchors(path: Path) -> set[str]:
    """Anchors that GitHub gives to the headings of a page."""
    titles = [line.lstrip("# ") for _, line in prose(path) if line.startswith("#")]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_lines_are_at_most_100_characters(page: Path) -> None:
    long = [
        f"{named(page)}:{number}: {len(line)} characters"
        for number, line in prose(page)
        if len(LINK.sub("", line)) > 100
    ]
    assert not long, "wrap at 100 characters:\n" + "\n".join(long)


@pytest.mark.parametrize("page", LINKING, ids=named)
def test_links_point_to_something(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for link in LINK.findall(text):
        if re.match(r"https?://|mailto:", link):
            continue
        target, _, anchor = link.partition("#")
        file = page.parent / target if target else page
        assert file.exists(), f"{named(page)}: {link} does not exist"
        if anchor and file.suffix == ".md":
            assert anchor in anchors(file), f"{named(page)}: {link} has no such heading"


def test_files_of_where_things_are_exist() -> None:
    page = section((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), "Where things are")
    table = "\n".join(line for line in page.splitlines() if line.startswith("|"))
    paths = re.findall(r"`([\w/]+(?:/|\.py|\.md))`", table)
    assert len(paths) > 12
    missing = [path for path in paths if not ((PACKAGE / path).exists() or (ROOT / path).exists())]
    assert not missing


def test_words_are_those_of_the_glossary() -> None:
    files = [ROOT / name for name in ("README.md", "CHANGELOG.md", "SECURITY.md")]
    for folder, ending in (("docs", "md"), ("src", "md"), ("src", "py"), ("src", "js")):
        files += sorted(ROOT.glob(f"{folder}/**/*.{ending}"))
    found = []
    for path in files:
        text = path.read_text(encoding="utf-8")
        for pattern, instead in UNUSUAL.items():
            spaced = pattern.replace(" ", r"[\s#]+")
            for match in re.finditer(rf"\b({spaced})\b", text, re.IGNORECASE):
                line = text.count("\n", 0, match.start()) + 1
                found.append(f"{named(path)}:{line}: {match.group()!r}; write {instead}")
    assert not found, "words that are not in the glossary:\n" + "\n".join(found)
