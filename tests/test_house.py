"""Rules of the house: private names stay in their package, one name is one class, and so on."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[1] / "src" / "kalstream"
MOST_LINES = 80
REASON = "# over 80 lines:"


def package_of(path: Path) -> str:
    return path.relative_to(SOURCES).parts[0]


def imports(path: Path) -> Iterator[tuple[int, str, list[str]]]:
    """Line, module and names of each import from kalstream."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kalstream."):
            yield node.lineno, str(node.module), [alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, []) for alias in node.names)


def test_no_private_name_is_imported_from_another_package() -> None:
    wrong = []
    for path in SOURCES.rglob("*.py"):
        for line, module, names in imports(path):
            _, *parts = module.split(".")
            if module.split(".")[0] != "kalstream" or not parts or parts[0] == package_of(path):
                continue
            if not (SOURCES / parts[0]).is_dir():  # a module of the root serves all packages
                parts = []
            private = [name for name in (*parts, *names) if name[:1] == "_" and name[:2] != "__"]
            if private:
                wrong.append(f"{path.relative_to(SOURCES)}:{line} imports {module} ({names})")
    assert not wrong, "\n".join(wrong)


def functions(path: Path) -> Iterator[tuple[str, int, str]]:
    """Name, lines without the docstring, and source of each function."""
    text = path.read_text()
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            n = 1 + (node.end_lineno or node.lineno) - node.lineno
            first = node.body[0]
            if ast.get_docstring(node) is not None:
                n -= 1 + (first.end_lineno or first.lineno) - first.lineno
            yield node.name, n, "\n".join(lines[max(0, node.lineno - 3) : node.end_lineno])


@pytest.mark.parametrize("path", sorted(SOURCES.rglob("*.py")), ids=lambda path: path.name)
def test_a_long_function_gives_its_reason(path: Path) -> None:
    for name, n, source in functions(path):
        assert n <= MOST_LINES or REASON in source, (
            f"{name} in {path.name} has {n} lines; cut it, or say why beside it: {REASON} ..."
        )


# Class names that occur in several modules, and the reason.
ADAPTER = "the adapter of river has the name of the estimator that it adapts"
OLDER = "older than this rule; rename one when you change it, and delete the line"
SHARED_NAMES = {
    "KalmanClassifier": ADAPTER,
    "KalmanRegressor": ADAPTER,
    "KeyedClassifier": ADAPTER,
    "KeyedRegressor": ADAPTER,
    "Stack": "the same rule in the core and, as a head of networks, in deep; both are public",
    "Keyed": "the core's settings of keys, and the model of `kalstream.distributed`",
    "Events": OLDER,
    "Known": OLDER,
    "Store": OLDER,
}


def test_a_class_name_stands_for_one_class() -> None:
    places = defaultdict(list)
    for path in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{path.relative_to(SOURCES)}:{node.lineno}")
    several = {name: where for name, where in places.items() if len(where) > 1}
    new = {name: where for name, where in several.items() if name not in SHARED_NAMES}
    assert not new, f"choose another name for one of {new}"
    assert set(SHARED_NAMES) == set(several), "delete names that one class has from SHARED_NAMES"
