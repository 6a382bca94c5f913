"""What a pipe shows at once decides the task; keys that come later are named."""

import io

import pytest

from kalstream import cli
from kalstream.errors import InvalidInput
from kalstream.streams import TableStream


def pipe(*lines: str) -> io.BytesIO:
    return io.BytesIO("".join(line + "\n" for line in lines).encode())


def test_the_task_is_guessed_from_all_rows_that_come_at_once() -> None:
    whole_first = pipe("x,y", "1,3", "2,2.5", "3,4.25")
    stream = TableStream(whole_first, "y")
    assert stream.task == "regression"
    assert "numbers in the first 3 rows" in stream.guess
    (batch,) = stream.batches()
    assert batch.targets.tolist() == [3.0, 2.5, 4.25]
    mixed = TableStream(pipe('{"x": 1, "y": 1}', '{"x": 1, "y": "no"}'), "y")
    assert mixed.task == "classification"
    assert next(mixed.batches()).targets.tolist() == ["1", "no"]
    assert TableStream(pipe("x,y", "1,1", "2,0"), "y").task == "classification"
    commas = TableStream(pipe("x;y", "1;3", "2;2,5", "3;4,25"), "y")
    assert next(commas.batches()).targets.tolist() == [3.0, 2.5, 4.25]


def test_large_whole_numbers_in_few_rows_are_not_guessed() -> None:
    with pytest.raises(InvalidInput, match=r'as 1532 in the only 1 rows .* give task="regr'):
        TableStream(pipe('{"x": 1, "y": 1532}'), "y")
    stream = TableStream(pipe('{"x": 1, "y": 1532}'), "y", task="regression")
    assert next(stream.batches()).targets.tolist() == [1532.0]


def test_keys_that_come_later_are_named_at_the_end(tmp_path, monkeypatch, capsys) -> None:
    lines = [f'{{"x": {k}, "y": {k % 2}}}' for k in range(20)]
    lines += ['{"x": 1, "y": 0, "wind": 3}', '{"x": 1, "y": 0, "wind": 3, "rain": 1}']
    stream = TableStream(pipe(*lines), "y")
    assert sum(len(batch) for batch in stream.batches()) == 22
    (note,) = stream.later_notes
    assert note.startswith("wind, rain: later rows have these keys")
    ignored = TableStream(pipe(*lines[:20], '{"x": 1, "y": 0}'), "y")
    assert list(ignored.batches())
    assert ignored.later_notes == ()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(pipe(*lines)))
    monkeypatch.setattr(
        "sys.argv", ["kalstream", "run", "-", "--target", "y", "--out", str(tmp_path / "run")]
    )
    with pytest.raises(SystemExit, match="0"):
        cli.main()
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.count("wind, rain: later rows have these keys") == 1
