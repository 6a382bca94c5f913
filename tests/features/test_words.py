"""Columns of texts become hashed words."""

import uuid
from pathlib import Path

import numpy as np
import pytest

from kalstream import KalmanClassifier, TableEncoder
from kalstream.evaluate import prequential
from kalstream.features import words
from kalstream.streams import Columns, TableStream, as_table

RNG = np.random.default_rng(0)
VOCABULARY = [f"word{k}" for k in range(200)]
SENTENCES = [" ".join(RNG.choice(VOCABULARY, 8)) for _ in range(600)]


def kind_of(values: list[str | None], **options: object) -> str:
    return TableEncoder(**options).fit([{"a": v} for v in values]).encoding_.columns[0].kind


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (SENTENCES, "text"),
        ([None, *SENTENCES], "text"),
        ([f"Mr. No {k}" for k in range(60)], "text"),
        ([f"Mr. No {k}" for k in range(49)], "category"),  # too few to know
        (SENTENCES[:1], "text"),  # a clear one
        ([*SENTENCES[:10]] * 30, "category"),  # ten categories
        ([f"Anna Smith-{k}" for k in range(60)], "category"),
        ([str(uuid.UUID(int=k)) for k in range(60)], "category"),
        ([f"2024-01-{k % 28 + 1:02} 10:00:{k:02}" for k in range(60)], "date"),
        (["", " "] * 40, "category"),
    ],
)
def test_which_columns_are_texts(values: list[str | None], kind: str) -> None:
    assert kind_of(values) == kind


def test_words_are_columns() -> None:
    encoder = TableEncoder()
    rows = encoder.fit_transform([{"a": text, "b": k} for k, text in enumerate(SENTENCES)])
    assert rows.shape == (600, words.N_SLOTS + 1)
    assert encoder.get_feature_names_out()[[0, 127, 128]].tolist() == ["a[0]", "a[127]", "b"]
    np.testing.assert_allclose(np.linalg.norm(rows[:, :-1], axis=1), 1)
    later = [{"a": "word1 WORD1, Word2!", "b": 0}, {"a": None, "b": 0}, {"a": "!", "b": 0}]
    made = encoder.transform(later)[:, :-1]
    assert sorted(np.abs(made[0][made[0] != 0]).round(3)) == [0.447, 0.894]
    assert not made[1:].any()
    assert kind_of(SENTENCES, categorical=["a"]) == "category"


def test_texts_of_a_file_are_learned_and_saved(tmp_path: Path) -> None:
    labels = [k % 5 < 2 for k in range(len(SENTENCES))]
    endings = ["bad" if label else "good" for label in labels]
    texts = [f"{text} {end}" for text, end in zip(SENTENCES, endings, strict=True)]
    file = tmp_path / "texts.csv"
    lines = [f'"{t}",{k % 3},{y}' for k, (t, y) in enumerate(zip(texts, labels, strict=True))]
    file.write_text("\n".join(["text,x,y", *lines]))
    stream = TableStream(file, "y")
    assert [c.kind for c in stream.encoder.features] == ["text", "number"]
    assert stream.notes == ()
    rows = np.vstack([batch.rows for batch in stream.batches()])
    again = Columns.from_json(stream.encoder.to_json())
    table = as_table([{"text": t, "x": k % 3, "y": "True"} for k, t in enumerate(texts)])
    np.testing.assert_array_equal(again.encode(table)[0], rows)
    known = prequential(KalmanClassifier(random_state=0), stream)
    without = prequential(KalmanClassifier(random_state=0), TableStream(file, "y", ignore=["text"]))
    assert known.total["log_loss"] < 0.8 * without.total["log_loss"]
    target = TableStream(file, "text", task="classification")  # texts may be labels
    assert target.task == "classification"
