"""The code and the commands of the guides run, and print what the page shows.

The blocks of a page run from top to bottom with the same names, in a folder with the files of
`FILES`. A block or a command that cannot run is in `NOT_RUN`, with the reason. The commands of
docs/serve.md have a test of their own, tests/serve/test_guide.py.
"""

import re
import shlex
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kalstream import cli, streams
from kalstream.evaluate import METRICS

ROOT = Path(__file__).parents[1]
# language, text, and the text of a block without a language right below
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$(?:\n\n```\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
GUIDES = {
    path.stem: path.read_text(encoding="utf-8")
    for path in [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]
    if path.stem != "serve"
}
SLOW = {"sweep"}  # more than 20 s

# (page, part of a block or a command) -> why it does not run
NOT_RUN = {
    ("deep", "Cifar100Stream("): "needs CIFAR-100 and a GPU",
    ("distributed", "with Keyed("): "needs Ray; tests/distributed/test_ray.py runs it",
    ("distributed", "kalstream sweep data.csv"): "needs Ray; tests/runs/test_sweep.py has it",
    ("evaluate", "kalstream compare runs/elec2-1"): "docs/run.md has the command with smaller runs",
    ("paper", "kalstream paper table1"): "needs CIFAR-100 and a GPU",
    ("run", "import my_formats"): "needs a script; tests/runs/test_formats.py has a format",
    ("run", "producer | kalstream"): "needs a program that sends rows; see tests/test_cli.py",
    ("run", "tail -f log.jsonl | kalstream run --resume"): "never ends; see tests/test_cli.py",
    ("run", "tail -f log.jsonl | kalstream run - --from"): "never ends; see tests/test_cli.py",
    ("run", "kalstream --install-completion"): "changes the settings of a shell",
}

# page -> code that runs first: what the page takes for granted
GIVEN = {
    "deep": """
        import torch
        from kalstream.deep.backbones import mobilenet_v2
        torch.save(mobilenet_v2().state_dict(), "mobilenet_v2-b0353104.pth")
        """,
    "estimators": """
        import numpy as np, pandas as pd
        row, up = np.arange(100), np.arange(100) % 3 == 0
        stream = [(np.column_stack([up, row]), np.where(up, "a", "b"))] * 2
        later = pd.DataFrame({"id": row, "zip": 7 + row % 2, "size": 1.0 * up})
        frames = [later.assign(label=np.where(up, "a", "b"))] * 2
        """,
    "run": "from kalstream.streams import ArrayStream as WaveStream",
}

# page -> {file: its text, or its columns and the number of its rows}
DATA = ("price,shop,label", 1000)
FILES: dict[str, dict[str, str | tuple[str, int]]] = {
    "evaluate": {"data.csv": DATA},
    "run": {
        "data.csv": DATA,
        "more.csv": ("price,shop,label", 100),
        "new.csv": ("order,price,shop,label", 120),
        "orders.csv": ("customer,amount,paid", 600),
        "my_module.py": "from sklearn.naive_bayes import GaussianNB as make_model\n",
    },
    "sweep": {
        "data.csv": DATA,
        "stores/north.csv": ("price,sold", 300),
        "stores/west.csv": ("price,sold", 200),
    },
}


def table(columns: str, n: int) -> str:
    """A CSV file; label, paid and sold depend on the other columns."""
    rng, lines = np.random.default_rng(n), [columns]
    for order in range(n):
        price, shop = rng.normal(), rng.choice(["north", "west"])
        sold = price if shop == "north" else -price
        values = {"order": order, "customer": f"c{order % 7}", "shop": shop, "price": price}
        values |= {"amount": sold, "sold": sold + rng.normal()}
        values |= {"label": "sold" if sold > 0.0 else "kept", "paid": "yes" if sold > 0.0 else "no"}
        lines.append(",".join(str(values[name]) for name in columns.split(",")))
    return "\n".join(lines) + "\n"


def commands(block: str) -> list[str]:
    """The lines of a block that are commands of kalstream."""
    lines = block.replace("\\\n", "").splitlines()
    return [line for line in lines if re.search(r"(^|\| )kalstream ", line)]


def steps(name: str) -> Iterator[tuple[bool, str, str]]:
    """Python blocks and commands of a page that run: (is Python, text, what the page shows)."""
    for language, text, shown in BLOCK.findall(GUIDES[name]):
        python = language == "python"
        for part in [text] if python else commands(text):
            if not any(page == name and reason in part for page, reason in NOT_RUN):
                yield python, part, shown if python else ""


@pytest.fixture
def registries() -> Iterator[None]:
    """Formats and metrics that a page adds are there for this page only."""
    formats, metrics = list(streams.FORMATS), dict(METRICS)
    yield
    streams.FORMATS[:] = formats
    METRICS.clear()
    METRICS.update(metrics)


@pytest.mark.filterwarnings("ignore::RuntimeWarning:sklearn")
@pytest.mark.usefixtures("registries")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else [])
        for name in GUIDES
        if any(steps(name))
    ],
)
def test_page(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = " ".join([GIVEN.get(name, ""), *(text for _, text, _ in steps(name))])
    for module in ("pandas", "river", "torch"):
        if re.search(rf"\b{module}\b", code):
            pytest.importorskip(module)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for file, made in FILES.get(name, {}).items():
        Path(file).parent.mkdir(exist_ok=True)
        Path(file).write_text(made if isinstance(made, str) else table(*made))
    space: dict[str, object] = {"__name__": name}
    exec(textwrap.dedent(GIVEN.get(name, "")), space)
    for python, text, shown in steps(name):
        if python:
            exec(compile(text, f"{name}.md", "exec"), space)
        else:
            monkeypatch.setattr(sys, "argv", shlex.split(text, comments=True))
            try:
                cli.main()
            except SystemExit as ended:
                assert not ended.code, f"{text}\n{capsys.readouterr().err}"
        printed = capsys.readouterr().out
        assert not shown or printed == shown, text


def test_what_does_not_run_is_on_its_page() -> None:
    for name, part in NOT_RUN:
        blocks = [text for _, text, _ in BLOCK.findall(GUIDES[name])]
        assert sum(part in text for text in blocks) == 1, (name, part)


def test_every_block_is_found() -> None:
    for name, text in GUIDES.items():
        found = [language for language, *_ in BLOCK.findall(text)]
        assert found.count("python") == len(re.findall(r"```python\b", text)), name
