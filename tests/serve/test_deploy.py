"""The files of deploy/: what they name exists."""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import typer.main
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from kalstream.cli import app
from kalstream.runs.options import Options
from kalstream.serve.app import make_app
from kalstream.serve.service import Service
from serve_rows import rows

FOLDER = Path(__file__).parents[2] / "deploy"
UNIT = (FOLDER / "kalstream.service").read_text(encoding="utf-8")


@pytest.fixture
def metrics(tmp_path: Path) -> dict[str, set[str]]:
    """Metrics of a service with a model of each task, and their labels."""
    service = Service(tmp_path / "data")
    service.start()
    service.begin("classes", Options(features="raw"))
    service.begin("numbers", Options(features="raw", task="regression"))
    client = TestClient(make_app(service), base_url="http://localhost")
    numbers = [{"row": {"x": float(k)}, "label": float(k)} for k in range(20)]
    for name, events in (("classes", rows(20)), ("numbers", numbers)):
        client.post(f"/models/{name}/learn", json={"rows": events}).raise_for_status()
    text = client.get("/metrics").text
    service.stop()
    samples = [each for family in text_string_to_metric_families(text) for each in family.samples]
    return {each.name: set(each.labels) for each in samples}


def test_the_dashboard_shows_metrics_that_exist(metrics: dict[str, set[str]]) -> None:
    dashboard = json.loads((FOLDER / "grafana.json").read_text(encoding="utf-8"))
    asked = [each["expr"] for panel in dashboard["panels"] for each in panel["targets"]]
    asked += [each["query"] for each in dashboard["templating"]["list"][1:]]
    assert len(asked) > 10
    for expression in asked:
        (name,) = re.findall(r"\bkalstream_\w+", expression)
        assert name in metrics, expression
        labels = re.findall(r"(\w+)\s*=~?", expression)
        for group in re.findall(r"by \((.*?)\)|kalstream_rows, (\w+)\)", expression):
            labels += [each for part in group for each in part.replace(",", " ").split()]
        assert set(labels) <= metrics[name], expression


def commands(text: str) -> list[list[str]]:
    """The commands of kalstream in a Dockerfile or a unit, comments included."""
    found = []
    for line in text.replace('["', "").replace('", "', " ").replace('"]', "").splitlines():
        if match := re.search(r"(?:^|[ =/])kalstream ((?:compile|serve|token)\b.*)", line):
            found.append(shlex.split(match[1]))
    return found


@pytest.mark.parametrize(("name", "least"), [("Dockerfile", 3), ("kalstream.service", 3)])
def test_commands_are_those_of_kalstream(name: str, least: int) -> None:
    found = commands((FOLDER / name).read_text(encoding="utf-8"))
    assert len(found) >= least
    known = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for command, *arguments in found:
        known[command].make_context(command, arguments)  # an unknown option is an error


def test_the_image_copies_files_that_exist() -> None:
    lines = (FOLDER / "Dockerfile").read_text(encoding="utf-8").splitlines()
    copied = [each for line in lines if line.startswith("COPY") for each in line.split()[1:-1]]
    assert len(copied) == 4
    assert all((FOLDER.parent / each).exists() for each in copied)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "kalstream.service"  # its program must exist
    unit.write_text(UNIT.replace("/opt/kalstream/bin/kalstream", str(shutil.which("true"))))
    ended = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True
    )
    assert (ended.returncode, ended.stderr) == (0, "")
