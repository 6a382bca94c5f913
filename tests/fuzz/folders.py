"""Run folders with damaged or forged files: each command works or names the problem.

A command that fails, or that only reads, changes no file. A run that is resumed from a damaged
checkpoint gives the numbers of the undamaged one, or is refused.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np

from fuzz.cases import LONGEST_MESSAGE, Case, Finding
from fuzz.checkpoints import damaged, places
from kalstream import cli
from kalstream.runs import Options, Run

ROWS = 200  # the run is interrupted before its end
BASES: dict[str, dict[str, Any]] = {
    "labels": {"target": "label", "features": "raw", "predictions": True, "window": 30},
    "late": {"target": "label", "delay": 7, "features": "scaled", "window": 40},
    "in time": {"target": "label", "time": "when", "delay": "7m", "features": "raw"},
    "ids": {"target": "label", "id": "when", "features": "raw", "predictions": True},
    "numbers": {"target": "x", "time": "when", "time_unit": "60", "forgetting": "0.99"},
}
VALUES = (
    *(None, True, -1, 0, 1, 7, 2**31, 2**63, 10**30, 0.5, -1.5, 1e308, "", "x", "-", "inf"),
    *("\x1b[31m", "../x", [], {}, [[]], [None], {"a": 1}, [1, 2, 3], "nan", "mixture"),
)
COMMANDS = (
    *("resume", "resume", "resume", "extend", "from", "report", "compare", "predict", "describe"),
    "json",
)


@functools.cache
def bases(folder: Path) -> Path:
    """A folder with data, interrupted runs, and the same runs after they were resumed."""
    root = folder / "bases"
    root.mkdir()
    rng = np.random.default_rng(0)
    lines = ["x,color,when,label"]
    for i in range(ROWS):
        color = ["red", "green", "blue"][rng.integers(3)]
        label = "new" if i > ROWS // 2 and color == "blue" else ["up", "down"][rng.integers(2)]
        lines.append(f"{rng.normal():.4f},{color},{60 * i},{label if i % 13 else ''}")
    (root / "data.csv").write_text("\n".join(lines) + "\n")
    later = [line.replace(",", f",{k},", 1) for k, line in enumerate(lines[1:60])]
    later = [f"{x},{color},{60 * (ROWS + int(k))},{label}"
             for x, k, color, _, label in (line.split(",") for line in later)]  # fmt: skip
    (root / "more.csv").write_text("\n".join([lines[0], *later]) + "\n")
    for name, options in BASES.items():
        calls = iter(range(10**6))
        run = Run(root / name, Options(source=str(root / "data.csv"), **options))
        run.go(stopped=lambda calls=calls: next(calls) > 0)
        shutil.copytree(root / name, root / f"{name}-resumed")
        code, output = command("run", "--resume", "--out", str(root / f"{name}-resumed"))
        if code != 0:
            raise Finding(f"an undamaged run cannot be resumed: {output}")
    return root


def command(*args: str) -> tuple[Any, str]:
    """Exit code and output of a command line."""
    out, err, before = io.StringIO(), io.StringIO(), sys.argv
    sys.argv, stdin = ["kalstream", *args], sys.stdin
    sys.stdin = io.StringIO("")  # a forged run may want to continue on a pipe
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            cli.main()
        return 0, out.getvalue()
    except SystemExit as end:
        return end.code or 0, err.getvalue() or out.getvalue()
    finally:
        sys.argv, sys.stdin = before, stdin


def case(case: Case) -> None:
    """Damage a copy of a run, then run commands on it."""
    base = case.pick(BASES)
    root, folder = bases(case.folder), case.folder / "run"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(root / case.pick([base, base, f"{base}-resumed"]), folder)
    n = case.pick([1, 1, 1, 2])
    changed = [change(case, folder, base, alone=n == 1) for _ in range(n)]
    for _ in range(2):
        name = case.pick(COMMANDS)
        page = str(case.folder / "page")
        args = {
            "resume": ["run", "--resume", "--out", str(folder)],
            "extend": ["run", str(root / "more.csv"), "--extend", str(folder)],
            "from": [
                *("run", str(root / "more.csv"), "--from", str(folder), "--overwrite"),
                *("--out", str(case.folder / "new")),
            ],
            "report": ["report", str(folder), "--out", page],
            "compare": ["compare", str(root / f"{base}-resumed"), str(folder), "--out", page],
            "predict": ["predict", str(folder), str(root / "data.csv"), "--out", page],
            "describe": ["describe", str(folder)],
            "json": ["describe", str(folder), "--json"],
        }[name]
        before = content(folder)
        (code, output), _ = case.attempt(f"{base}: kalstream {name}", lambda a=args: command(*a))
        case.note(f"  {code}: {output.strip()[-200:]}")
        if code not in (0, 1, 2) or (code and not output.strip()) or len(output) > LONGEST_MESSAGE:
            raise Finding(f"{name} ends with {code} and {len(output)} characters: {output[:200]!r}")
        if (code or name not in ("resume", "extend")) and content(folder) != before:
            files = {k for k, v in {**before, **content(folder)}.items() if before.get(k) != v}
            files |= set(before) - set(content(folder))
            raise Finding(f"{name} ({code}: {output.strip()[-200:]}) has changed {sorted(files)}")
        if name in ("resume", "extend") and code == 0:
            if name == "resume" and all(file.startswith("checkpoint/") for file in changed):
                check_end(folder, root / f"{base}-resumed")
            return


def check_end(folder: Path, other: Path) -> None:
    """Check that a resumed run has the numbers of another one, except for times."""
    for name in ("metrics.jsonl", "predictions.jsonl"):
        if not (other / name).exists():
            continue
        one, two = (
            [json.loads(line) for line in (path / name).read_text().splitlines()]
            for path in (folder, other)
        )
        for line in one + two:
            line.pop("clock", None)
        if one != two:
            pairs = zip(one, two, strict=False)
            at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(two)))
            raise Finding(
                f"the resumed run has other numbers: {name} differs from line {at + 1} on"
            )


def content(folder: Path) -> dict[str, bytes]:
    """Files of a folder, without those that commands write."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b"/"
        for path in folder.rglob("*")
        if path.name not in ("report.html", "run.lock", ".lock")
    }


# ---- changes ------------------------------------------------------------------------------


def change(case: Case, folder: Path, base: str, *, alone: bool) -> str:
    """Damage one file; return its name."""
    files = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
    files = [name for name in files if not name.endswith(".html")]
    if not files:
        return ""
    name = case.pick(files)
    path, data = folder / name, (folder / name).read_bytes()
    kinds = ["bytes", "bytes", "json", "json", "json", "zeros", "empty", "gone", "other"]
    kind = case.pick([*kinds, "folder"] if alone else kinds)
    text = kind
    if kind == "json" and name.endswith(("json", "jsonl")) and data:
        changed = forged(case, data, lines=name.endswith("jsonl"))
        if changed is None:
            return name
        data, text = changed
        path.write_bytes(data)
    elif kind == "zeros":
        path.write_bytes(data + bytes(63))
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "gone":
        path.unlink()
    elif kind == "folder":
        path.unlink()
        path.mkdir()
    elif kind == "other":
        root = bases(case.folder)
        other = root / case.pick([key for key in BASES if key != base])
        models = [p for p in other.rglob("*") if p.is_file() and p.suffix == path.suffix]
        source = case.pick(sorted(models))
        path.write_bytes(source.read_bytes())
        text = f"{source.relative_to(root)} in its place"
    elif data:
        data, text = damaged(case, data)
        path.write_bytes(data)
    case.note(f"{base}: {name}: {text}")
    return name


def forged(case: Case, data: bytes, lines: bool) -> tuple[bytes, str] | None:
    """Replace or delete one value of the JSON; None if the data are not JSON."""
    parts = data.splitlines() if lines else [data]
    at = int(case.rng.integers(len(parts)))
    try:
        tree = json.loads(parts[at])
        node, key, path = case.pick(places(tree))
    except (ValueError, IndexError):
        return None
    if case.chance(0.2):
        del node[key]
        value = "gone"
    else:
        value = node[key] = case.pick(VALUES)
    parts[at] = json.dumps(tree).encode()
    return b"\n".join(parts) + b"\n", f"line {at + 1}: {path} is {str(value)[:60]!r}"
