"""The page: complete, well formed, honest, harmless and small."""

from __future__ import annotations

import json
import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kalstream.errors import InvalidInput
from kalstream.report import (
    compare,
    compare_runs,
    make_report,
    read_run,
    write_comparison,
    write_report,
)
from kalstream.report.elements import Children, prose
from kalstream.report.page import Section
from kalstream.report.read import RunRecord
from kalstream.report.sections.forgetting import typical_half_life
from kalstream.report.sections.headline import state
from kalstream.report.verdict import leads, verdict
from report import synthetic

EVIL = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'onmouseover='alert(1)",
    "</svg></table><h1>hi</h1>",
    "&lt;b&gt;",
    "a\u202eb\x00\ud800",
]
VOID = {"br", "col", "link", "meta"}


def killed(folder: Path) -> Path:
    path = synthetic.classification(folder, rows=3000) / "metrics.jsonl"
    text = path.read_text().splitlines()
    path.write_text("\n".join(text[:9]) + "\n" + text[9][:100])
    return folder


def late_probabilities(folder: Path) -> Path:
    """A learner that says something about itself from the third window on only."""

    def change(lines: list[Any]) -> list[Any]:
        for line in lines[:2]:
            line["half_life"] = line["reliability"] = None
            line["window"]["log_loss"] = line["total"]["log_loss"] = None
        return lines

    return synthetic.change_lines(synthetic.classification(folder, rows=3000), change)


def nothing_scored(folder: Path) -> Path:
    """Windows in which no row had a target."""

    def change(lines: list[Any]) -> list[Any]:
        for line in lines[2:6]:
            line |= {"n": 0, "missing": 200, "confusion": [], "reliability": None}
            line["window"] = dict.fromkeys(line["window"])
        return lines

    return synthetic.change_lines(synthetic.classification(folder, rows=3000), change)


def unpredicted(folder: Path) -> Path:
    def change(lines: list[Any]) -> list[Any]:
        lines[0]["confusion"].append([0, -1, 7])
        return lines

    return synthetic.change_lines(synthetic.classification(folder, rows=1000), change)


RUNS: dict[str, Callable[[Path], Path]] = {
    "binary": synthetic.classification,
    "many": synthetic.many_classes,
    "learned": lambda f: synthetic.classification(f, half_life="learned"),
    "fixed": lambda f: synthetic.classification(f, half_life="fixed"),
    "regression": synthetic.regression,
    "points": lambda f: synthetic.regression(f, density=False, rows=900),
    "silent": lambda f: synthetic.classification(f, probabilities=False, half_life=None),
    "killed": killed,
    "one": lambda f: synthetic.classification(f, rows=150),
    "row": lambda f: synthetic.classification(f, rows=1, drifts=()),
    "one number": lambda f: synthetic.regression(f, rows=100),
    "late": late_probabilities,
    "unscored": nothing_scored,
    "unpredicted": unpredicted,
    "hostile": lambda f: synthetic.classification(
        f,
        rows=2000,
        labels=EVIL,
        name=EVIL[0],
        target=EVIL[1],
        attribution=EVIL[3],
        columns=[{"name": evil, "kind": EVIL[0]} for evil in EVIL],
        source=EVIL[2],
    ),
}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, str]]:
    root = tmp_path_factory.mktemp("runs")
    folders = {name: make(root / name) for name, make in RUNS.items()}
    return {name: (folder, make_report(folder)) for name, folder in folders.items()}


@pytest.fixture(params=RUNS)
def made(request: pytest.FixtureRequest, pages: dict[str, tuple[Path, str]]) -> tuple[Path, str]:
    return pages[request.param]


class Strict(HTMLParser):
    """Every tag is closed in order; texts, elements and attributes are kept."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("style", "script"):
            self.text.append(data)


def words_of(page: str) -> str:
    return re.sub(r"\s+", " ", " ".join(Strict(page).text))


def test_well_formed(made: tuple[Path, str]) -> None:
    _, page = made
    strict = Strict(page)
    tags = [tag for tag, _ in strict.seen]
    assert page.startswith("<!doctype html>")
    for one in ("html", "head", "title", "h1", "main"):
        assert (
            tags.count(one) - (strict.seen.count(("title", {})) - 1 if one == "title" else 0) == 1
        )
    ids = [attributes["id"] for _, attributes in strict.seen if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes in strict.seen:
        if (attributes.get("href") or "").startswith("#"):
            assert (attributes["href"] or "")[1:] in ids


def test_each_figure_is_xml_with_a_title_and_a_description(made: tuple[Path, str]) -> None:
    _, page = made
    starts = page.count('class="chart"')
    found = re.findall(
        r'<svg(?=[^>]*class="chart")(?:(?!<svg).)*<svg.*?</svg>.*?</svg>', page, re.S
    )
    assert len(found) == starts > 0
    for one in found:
        root = ET.fromstring(one)
        assert root.findtext("title")
        assert root.findtext("desc")
        assert root.get("role") == "img"
        for path in root.iter("path"):
            assert path.get("d")
            assert not re.search(r"[^MLHVhvz0-9.e\- ]", path.get("d") or "")


def test_every_section_is_there(made: tuple[Path, str]) -> None:
    folder, page = made
    wanted = ["scores", "forgetting", "calibration", "bits", "cost", "settings"]
    if read_run(folder).classification:
        wanted.append("classes")
    for anchor in wanted:
        assert f'<section id="{anchor}">' in page
        assert f'href="#{anchor}"' in page


def test_nothing_is_undefined_on_the_page(made: tuple[Path, str]) -> None:
    _, page = made
    for word in ("nan", "inf", "none", "null", "undefined"):
        shown = words_of(page)
        # "none" is how an absent setting is written, and the column of rows without prediction
        if word != "none":
            assert not re.search(rf"\b{word}\b", shown, re.I), word
    assert not re.search(r'="[^"]*\b(nan|inf)\b[^"]*"', page, re.I)


def test_nothing_is_asked_from_elsewhere(made: tuple[Path, str]) -> None:
    _, page = made
    assert "http://" not in page
    assert "https://" not in page
    assert "url(" not in page
    assert "@import" not in page
    for tag, attributes in Strict(page).seen:
        assert tag not in ("iframe", "img", "object", "embed", "form", "base")
        assert "src" not in attributes
        if "href" in attributes:
            assert (attributes["href"] or "").startswith(("#", "data:,"))
    assert "default-src 'none'" in page


def test_no_label_can_become_html(pages: dict[str, tuple[Path, str]]) -> None:
    _, page = pages["hostile"]
    strict = Strict(page)
    assert [tag for tag, _ in strict.seen].count("script") == 1
    for _, attributes in strict.seen:
        assert not any(name.startswith("on") for name in attributes)
    text = words_of(page)
    for evil in EVIL[:5]:
        assert evil in text  # it is there, as text
    page.encode("utf-8")
    assert "\x00" not in page
    assert "\u202e" not in page


def test_hostile_names_of_everything(tmp_path: Path) -> None:
    folder = synthetic.classification(tmp_path / "<script>alert(2)<", rows=1000)
    settings = json.loads((folder / "config.json").read_text())
    settings["learner"] = {"name": EVIL[0], "params": {EVIL[1]: EVIL[3], "x": [EVIL[0]]}}
    settings["command"] = f"kalstream run {EVIL[0]}"
    settings["machine"] = {EVIL[2]: EVIL[3]}
    settings["protocol"][EVIL[3]] = None
    settings["version"] = EVIL[0]
    (folder / "config.json").write_text(json.dumps(settings))

    def change(lines: list[Any]) -> list[Any]:
        lines[-1] |= {"reason": "error", "message": EVIL[0]}
        for line in lines[:-1]:
            line["baselines"][EVIL[0]] = line["baselines"].pop("majority")
        lines[-1]["baselines"][EVIL[0]] = lines[-1]["baselines"].pop("majority")
        return lines

    synthetic.change_lines(folder, change)
    test = {"a": EVIL[0], "b": EVIL[1], "metric": "accuracy"}
    test |= {"difference": 0.1, "standard_error": 0.1, "p_value": 0.01, "n": 10}
    for page in (make_report(folder), compare([folder, folder], [test])):
        strict = Strict(page)
        assert [tag for tag, _ in strict.seen].count("script") == 1
        assert [tag for tag, _ in strict.seen].count("h1") == 1
        assert not any(name.startswith("on") for _, a in strict.seen for name in a)


def test_numbers_agree_with_the_files(pages: dict[str, tuple[Path, str]]) -> None:
    folder, page = pages["binary"]
    end = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    text = words_of(page)
    assert f"{100 * end['total']['accuracy']:.1f}%" in text
    assert f"{end['total']['log_loss']:.3g}" in text
    assert f"{end['total']['code_length']:,.0f}" in text
    assert f"ECE {100 * end['total']['ece']:.1f}%" in text
    for name in ("no_change", "majority"):
        assert f"{100 * end['baselines'][name]['accuracy']:.1f}%" in text
        assert f"{end['baselines'][name]['code_length']:,.0f}" in text
    assert "2 alarms" in text
    assert "first at row 6,040, last at row 13,040" in text
    assert "20,000 rows" in text
    settings = json.loads((folder / "config.json").read_text())
    assert settings["command"] in text
    assert settings["stream"]["fingerprint"] in text


def test_confusions_agree_with_the_files(pages: dict[str, tuple[Path, str]]) -> None:
    """The counts behind the cells of the four matrices add up to those of the files."""
    for name in ("binary", "many"):
        folder, page = pages[name]
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        total = sum(count for line in lines[:-1] for _, _, count in line["confusion"])
        cells = re.findall(r'title="([\d,]+) of [\d,]+ rows"', page)
        assert sum(int(cell.replace(",", "")) for cell in cells) == total


def test_curves_agree_with_the_files(pages: dict[str, tuple[Path, str]]) -> None:
    """A drawn path, read back as the script does it, gives the numbers again."""
    folder, page = pages["binary"]
    run = read_run(folder)
    figure = page[page.index("Accuracy over all rows so far") - 200 :]
    low, high = map(float, re.search(r'data-y="(\S+) (\S+) percent"', figure).groups())  # type: ignore[union-attr]
    path = re.search(r'<path d="([^"]*)" class="line model" data-name="learner"', figure)
    assert path is not None
    points = np.array(re.findall(r"[ML](\S+?) ([\d.\-]+)", path.group(1)), dtype=float)
    np.testing.assert_allclose(
        low + (1 - points[:, 1] / 1000) * (high - low), run.column("total.accuracy"), atol=1e-4
    )
    np.testing.assert_allclose(points[:, 0] * run.rows / 1000, [w.row for w in run.windows], atol=2)


def scale(folder: Path, **factors: float) -> Path:
    """Multiply scores of the learner everywhere."""

    def change(lines: list[Any]) -> list[Any]:
        for line in lines:
            for part in ("window", "total"):
                for key, factor in factors.items():
                    if part in line:
                        line[part][key] *= factor
        return lines

    return synthetic.change_lines(folder, change)


def test_the_verdict_is_honest(tmp_path: Path) -> None:
    good = synthetic.classification(tmp_path / "good", stay=0.4, labels=list("abcde"), rows=8000)
    kind, sentence = verdict(read_run(good))
    assert kind == "good"
    assert sentence.startswith("In accuracy and log-loss it beats both baselines")
    bad = scale(good, accuracy=0.01, log_loss=100)
    kind, sentence = verdict(read_run(bad))
    assert kind == "bad"
    assert "beats neither baseline" in sentence
    assert "beats neither baseline" in words_of(make_report(bad))
    mixed = synthetic.classification(tmp_path / "mixed", stay=0.95, rows=8000)
    kind, sentence = verdict(read_run(mixed))
    assert kind == "bad"
    assert (
        "predicting the most frequent label so far but is worse than repeating the last label"
        in sentence
    )
    assert "come in stretches" in words_of(make_report(mixed))


def test_a_difference_within_chance_is_level(tmp_path: Path) -> None:
    folder = synthetic.classification(tmp_path, rows=8000, drifts=())
    random = np.random.default_rng(0)

    def change(lines: list[Any]) -> list[Any]:
        for line in lines[:-1]:
            theirs = line["baselines"]["no_change"]
            step = 0.02 * random.normal()
            line["window"]["accuracy"] = theirs["window"]["accuracy"] + step
            line["total"]["accuracy"] = theirs["total"]["accuracy"] + 0.0001
        lines[-1]["total"]["accuracy"] = lines[-2]["total"]["accuracy"]
        return lines

    run = read_run(synthetic.change_lines(folder, change))
    lead = next(lead for lead in leads(run, "accuracy") if lead.baseline == "no_change")
    assert lead.verdict == "is as good as"
    assert 0.2 < lead.ahead < 0.8
    assert 0 < lead.noise < 0.02
    assert "is as good as repeating the last label" in verdict(run)[1]


@pytest.mark.parametrize("shift", [0.0, 0.01, 0.02, 0.03, 0.04])
def test_the_verdict_is_that_of_compare(tmp_path: Path, shift: float) -> None:
    """A baseline written down as a run of its own: both pages must say the same of the two."""
    random = np.random.default_rng(3)
    slow = np.repeat(random.normal(size=10), 4) * 0.05  # windows that are alike

    def change(lines: list[Any], as_baseline: bool = False) -> list[Any]:
        scores = []
        for line, step in zip(lines[:-1], slow, strict=True):
            theirs = line["baselines"]["no_change"]["window"]["accuracy"]
            line["window"]["accuracy"] = theirs if as_baseline else theirs + step + shift
            scores.append(line["window"]["accuracy"])
            line["total"]["accuracy"] = float(np.mean(scores))
        lines[-1]["total"]["accuracy"] = float(np.mean(scores))
        return lines

    ours, theirs = (
        synthetic.classification(tmp_path / name, rows=8000, drifts=()) for name in ("a", "b")
    )
    synthetic.change_lines(ours, change)
    synthetic.change_lines(theirs, lambda lines: change(lines, True))
    lead = next(lead for lead in leads(read_run(ours), "accuracy") if lead.baseline == "no_change")
    test = next(t for t in compare_runs([ours, theirs]) if t["metric"] == "accuracy")
    assert lead.p_value == pytest.approx(test["p_value"])
    assert lead.noise == pytest.approx(test["margin"])
    is_better = lead.verdict == "beats"
    assert is_better == (abs(test["difference"]) > test["margin"])
    page = words_of(compare([ours, theirs], [test]))
    assert ("a is better." in page) == is_better
    assert ("No more than chance" in page) == (lead.verdict == "is as good as")


def test_a_baseline_without_a_metric_is_left_out(tmp_path: Path) -> None:
    def change(lines: list[Any]) -> list[Any]:
        for line in lines[:-1]:
            del line["baselines"]["majority"]["total"]["log_loss"]
        del lines[-1]["baselines"]["majority"]["log_loss"]
        return lines

    run = read_run(synthetic.change_lines(synthetic.classification(tmp_path, rows=1000), change))
    assert [lead.baseline for lead in leads(run, "log_loss")] == ["no_change"]
    assert [lead.baseline for lead in leads(run, "accuracy")] == ["no_change", "majority"]


def test_states(tmp_path: Path) -> None:
    folder = synthetic.classification(tmp_path, rows=1000)
    assert state(read_run(folder)) == ("finished", "")
    for reason, word in (("interrupted", "interrupted"), ("error", "error"), ("limit", "finished")):
        message = {"reason": reason, "message": "the disk is full"}
        synthetic.change_lines(folder, lambda lines, m=message: [*lines[:-1], lines[-1] | m])
        assert state(read_run(folder))[0] == word
        assert word in words_of(make_report(folder))
    synthetic.change_lines(folder, lambda lines: [*lines[:-1], lines[-1] | {"reason": "error"}])
    assert "the disk is full" in words_of(make_report(folder))
    synthetic.change_lines(folder, lambda lines: lines[:-1])
    assert state(read_run(folder))[0] == "not finished"
    assert "Not finished" in words_of(make_report(folder))


def test_half_lives(pages: dict[str, tuple[Path, str]]) -> None:
    assert "never" in words_of(pages["binary"][1])
    assert typical_half_life(read_run(pages["fixed"][0])) == (math.inf, True)
    assert "The settings fix the half-life" in words_of(pages["fixed"][1])
    life, fixed = typical_half_life(read_run(pages["learned"][0]))
    assert 1000 < life < 10_000
    assert not fixed
    assert "logarithmic" in words_of(pages["learned"][1])
    assert "does not report how fast it forgets" in words_of(pages["silent"][1])


def test_half_lives_by_a_column_of_times_are_not_in_rows(tmp_path: Path) -> None:
    text = words_of(make_report(synthetic.classification(tmp_path, rows=2000, time="date")))
    assert "Half-lives in units of time" in text
    assert "0k units of time" in text


def test_options_are_listed(tmp_path: Path) -> None:
    folder = synthetic.classification(tmp_path, rows=400)
    settings = json.loads((folder / "config.json").read_text())
    settings["options"] = {"forgetting": "mixture", "target": "<b>"}
    (folder / "config.json").write_text(json.dumps(settings))
    text = words_of(make_report(folder))
    assert "All options of the command" in text
    assert "<b>" in text


def test_what_a_learner_does_not_give_is_said(pages: dict[str, tuple[Path, str]]) -> None:
    assert "gives no probabilities" in words_of(pages["silent"][1])
    assert "gives no predictive density" in words_of(pages["points"][1])
    assert "The code length is not defined" in words_of(pages["regression"][1])
    assert "none" in words_of(pages["unpredicted"][1])


def test_how_late_labels_are(tmp_path: Path) -> None:
    for number, (more, protocol, expected) in enumerate(
        [
            ({}, {"delay": 500}, "labels are 500 rows late"),
            ({}, {"delay": 0, "delay_seconds": 259200.0}, "labels are 3 days late"),
            ({"id": "order"}, {}, "labels come with later rows (“order”)"),
            ({"label_time": "paid_on"}, {}, "labels come at the times in the column “paid_on”"),
        ]
    ):
        folder = synthetic.classification(tmp_path / str(number), rows=500, **more)
        settings = json.loads((folder / "config.json").read_text())
        settings["protocol"] |= protocol
        (folder / "config.json").write_text(json.dumps(settings))
        assert expected in words_of(make_report(folder))


def test_no_label_came_before_the_end(tmp_path: Path) -> None:
    def change(lines: list[Any]) -> list[Any]:
        for line in lines:
            line |= {"n": 0, "confusion": [], "reliability": None, "drift": []}
            for part in ("window", "total"):
                if part in line:
                    line[part] = dict.fromkeys(line[part]) | {"code_length": -0.0}
            line["baselines"] = {}
        return lines

    folder = synthetic.change_lines(synthetic.classification(tmp_path, rows=1000), change)
    words = words_of(make_report(folder))
    assert words.count("No row was scored: no label came before the end.") >= 4
    for wrong in ("gives no probabilities", "not detect drift", "no baselines", "-0", "−0"):
        assert wrong not in words


def test_new_classes_are_told(pages: dict[str, tuple[Path, str]]) -> None:
    _, page = pages["many"]
    text = words_of(page)
    assert "10 appeared in the first window, 30 later" in text
    assert "others" in text
    assert "◂" in text


def test_new_classes_that_were_expected_are_drawn(tmp_path: Path) -> None:
    def change(lines: list[Any]) -> list[Any]:
        for line in lines[:-1]:
            line["expected_new"] = 0.25
        return lines

    title, folder = "New classes, expected and seen", synthetic.many_classes(tmp_path, rows=4000)
    assert title not in make_report(folder)
    page = make_report(synthetic.change_lines(folder, change))
    assert title in page
    n_windows, n_classes = len(read_run(folder).windows), len(read_run(folder).labels)
    said = words_of(page)
    assert f"In all it expected {0.25 * n_windows:g}, without the rows before" in said
    assert "classes appeared." in said
    assert n_classes > 10
    Strict(page)


def test_regression_tells_coverage(pages: dict[str, tuple[Path, str]]) -> None:
    folder, page = pages["regression"]
    coverage = read_run(folder).total("coverage")
    assert f"{100 * coverage:.1f}% in the central 90% interval" in words_of(page)


def huge(folder: Path) -> Path:
    """5,000 windows, 3,000 classes, 3,000 alarms: window lines as large as they get."""
    random = np.random.default_rng(0)
    base = synthetic.classification(folder, rows=4000)
    first = json.loads((base / "metrics.jsonl").read_text().splitlines()[3])
    lines = []
    for i in range(5000):
        line = json.loads(json.dumps(first))
        line["row"] = 200 * (i + 1)
        for part in (line["window"], line["total"]):
            part["accuracy"], part["log_loss"] = random.random(2).tolist()
        line["total"]["code_length"] = 100.0 * i
        line["half_life"] = synthetic.posterior(line["row"] % 20_000, [], random)
        line["drift"] = [{"row": line["row"] - 3, "confidence": 0.9}] if i % 5 < 3 else []
        line["new_classes"] = [
            {"code": code, "label": f"class number {code} with a long name", "row": line["row"] - 1}
            for code in ([i] if i < 3000 else [])
        ]
        true, guess = random.integers(0, min(i + 1, 3000), (2, 150)).tolist()
        pairs = zip(true, guess, strict=True)
        line["confusion"] = [[t, g, 1] for t, g in pairs]
        lines.append(line)
    labels = [f"class number {code} with a long name" for code in range(3000)]
    columns = [{"name": f"column {i}", "kind": "number"} for i in range(2000)]
    settings = synthetic.config("classification", 1_000_000, 200, columns=columns)
    return synthetic.write(folder, settings, [*lines, synthetic.end_line(lines, labels)])


def test_an_alarm_is_marked_where_it_was_raised(tmp_path: Path) -> None:
    folder = synthetic.classification(tmp_path, rows=2000, drifts=())
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    pages = []
    for alarm in ({"row": 700}, {"row": 700, "raised": 700}, {"row": 300, "raised": 700}):
        lines[3]["drift"] = [alarm | {"confidence": 0.9}]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        pages.append(make_report(folder))
    old, in_time, late = pages
    assert old == in_time
    assert "(at row 700)" in old
    assert "Since row" not in old
    assert "(at row 700, since row 300)" in late
    assert "Since row" in late
    figures = [re.findall('<path[^>]*class="alarm"[^>]*>', page) for page in pages]
    assert figures[0] == figures[2] != []


def test_a_long_run_makes_a_small_page(tmp_path: Path) -> None:
    folder = huge(tmp_path / "huge")
    page = make_report(folder)
    assert len(page.encode()) < 1_000_000
    Strict(page)
    assert len(compare([folder, folder]).encode()) < 1_000_000


def test_small_runs_make_small_pages(made: tuple[Path, str]) -> None:
    assert len(made[1].encode()) < 250_000


def test_the_same_files_make_the_same_page(pages: dict[str, tuple[Path, str]]) -> None:
    folder, page = pages["many"]
    assert make_report(folder) == page


def test_reports_are_written_whole_or_not_at_all(tmp_path: Path) -> None:
    folder = synthetic.classification(tmp_path / "run", rows=400)
    assert write_report(folder) == folder / "report.html"
    elsewhere = write_report(folder, tmp_path / "x.html")
    assert elsewhere.read_text() == (folder / "report.html").read_text() == make_report(folder)
    assert elsewhere.stat().st_mode & 0o400
    (folder / "metrics.jsonl").write_text("")
    before = elsewhere.read_text()
    with pytest.raises(InvalidInput):
        write_report(folder, elsewhere)
    assert elsewhere.read_text() == before
    target = tmp_path / "folder.html"
    target.mkdir()
    with pytest.raises(OSError, match=r"folder\.html"):
        write_comparison(
            [tmp_path / "run2", synthetic.classification(tmp_path / "run2", rows=400)], target
        )
    assert not list(tmp_path.glob(".*.tmp"))


@pytest.fixture
def three(tmp_path: Path) -> list[Path]:
    return [
        synthetic.classification(tmp_path / "mixture", rows=4000),
        synthetic.classification(tmp_path / "fixed", rows=4000, half_life="fixed", skill=0.8),
        synthetic.classification(
            tmp_path / "silent", rows=4000, probabilities=False, half_life=None
        ),
    ]


def test_a_comparison_lays_runs_over_each_other(three: list[Path]) -> None:
    test = {"a": "mixture", "b": "fixed", "metric": "log_loss", "difference": -0.05}
    test |= {"standard_error": 0.004, "p_value": 1e-9, "n": 4000}
    level = test | {"b": "silent", "p_value": 0.5}
    page = compare(three, [test, level])
    text = words_of(page)
    for run in three:
        assert run.name in text
        assert f"{100 * read_run(run).total('accuracy'):.1f}%" in text
    assert "mixture is better." in text
    assert "No more than chance." in text
    assert "< 0.001" in text
    assert "p-value" in text
    assert "Bits saved against mixture" in text
    assert "Paired tests" not in words_of(compare(three))
    assert "https://" not in page


def test_less_is_not_better_for_accuracy(three: list[Path]) -> None:
    test = {"a": "mixture", "b": "fixed", "metric": "accuracy", "difference": -0.05}
    test |= {"standard_error": 0.004, "p_value": 1e-9, "n": 4000}
    assert "fixed is better." in words_of(compare(three[:2], [test]))
    undefined = test | {"p_value": None, "difference": None, "standard_error": None}
    assert "Not defined." in words_of(compare(three[:2], [undefined]))
    with pytest.raises(InvalidInput, match="paired test"):
        compare(three[:2], [{"a": "mixture"}])
    with pytest.raises(InvalidInput, match=r"not a paired test.*<b>"):
        compare(three[:2], [test | {"metric": "<b>"}])


def test_regressions_compare(tmp_path: Path) -> None:
    runs = [synthetic.regression(tmp_path / name, rows=2000, seed=i) for i, name in enumerate("ab")]
    text = words_of(compare(runs))
    assert "RMSE" in text
    assert "Coverage" in text


def test_other_data_is_refused(three: list[Path], tmp_path: Path) -> None:
    other = synthetic.classification(tmp_path / "other", rows=400, fingerprint="sha256:different")
    with pytest.raises(InvalidInput, match="sha256:different") as caught:
        compare([three[0], other])
    assert str(three[0]) in str(caught.value)
    assert str(other) in str(caught.value)
    with pytest.raises(InvalidInput, match="at least two"):
        compare(three[:1])


def test_unknown_data_is_taken_with_care(tmp_path: Path) -> None:
    runs = [synthetic.classification(tmp_path / n, rows=400, fingerprint=None) for n in "ab"]
    assert "do not identify their data" in words_of(compare(runs))


def test_runs_are_tested_in_pairs(three: list[Path]) -> None:
    tests = compare_runs(three)
    assert {test["metric"] for test in tests} == {"log_loss", "accuracy"}
    text = words_of(compare(three, tests))
    assert "mixture is better." in text
    assert "window by window" in text


def test_runs_of_the_same_name_are_told_apart(tmp_path: Path) -> None:
    runs = [synthetic.classification(tmp_path / d / "run", rows=600) for d in ("one", "two")]
    text = words_of(compare(runs))
    assert "one/run" in text
    assert "two/run" in text
    short = synthetic.classification(tmp_path / "short", rows=400)
    assert "same number of rows" in words_of(compare([runs[0], short]))


def test_many_runs_are_told_apart(tmp_path: Path) -> None:
    runs = [synthetic.classification(tmp_path / f"run {i}", rows=400, seed=i) for i in range(10)]
    Strict(compare(runs))


def test_a_new_section_is_one_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def last_row(run: RunRecord) -> Children:
        return [prose(f"The last row was row {run.rows:,}.")]

    new = Section("last", "The last row", last_row)
    monkeypatch.setattr("kalstream.report.page._SECTIONS", (new,))
    text = make_report(synthetic.regression(tmp_path, rows=3000))
    assert 'href="#last"' in text
    assert "The last row was row 3,000." in text
