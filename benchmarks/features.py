"""Comparison of raw, scaled and Fourier features, on tables and on embeddings.

Writes its section. Each chunk of ten rows is predicted, then learned. The data are those of
data.py.
"""

from __future__ import annotations

from embeddings import EMBEDDINGS, ORDERS, embeddings, run_chunks
from page import machine, table, write_section

from data import FOLDER, name_of, read, stream_files

LIMIT = 20_000  # rows of a table, enough to see the differences


def main() -> None:
    """Measure everything whose data exist, and write the section."""
    tables = {name_of(path): read(path, LIMIT) for path in stream_files()}
    streams = dict(tables)
    if (FOLDER / "embeddings" / EMBEDDINGS).exists():
        streams |= {order: embeddings(order) for order in ORDERS}
    lines = []
    for name, stream in streams.items():
        cells = []
        for features in ("raw", "scaled", "fourier"):
            if features == "raw" and name in tables:
                cells.append("")  # raw features need columns of similar scale
                continue
            accuracy, loss, microseconds = run_chunks(stream, features)
            cells.append(f"{accuracy:.4f} / {loss:.4f}, {microseconds:.0f} us")
        lines.append([name, *cells])
        print(lines[-1], flush=True)
    body = [
        "## Which features",
        f"`KALSTREAM_DATA=... python benchmarks/features.py` on {machine()}.",
        table(["", "raw", "scaled", "fourier"], lines),
        "Accuracy / log-loss, and time of a row, in chunks of 10. Tables: the first "
        f"{LIMIT:,} rows. Embeddings: all 50,000 rows.",
    ]
    write_section("features", "\n\n".join(body))


if __name__ == "__main__":
    main()
