"""Reports: HTML pages made from the files of runs, and from nothing else.

A page is one file that needs no network, so it can be mailed and archived:

>>> from pathlib import Path
>>> from kalstream.errors import InvalidInput
>>> from kalstream.report import make_report
>>> try:
...     make_report(Path("no/such/run"))
... except InvalidInput as error:
...     print(error)
no/such/run: no such folder; give the folder that `kalstream run` wrote
"""

from kalstream.report.compare import compare, write_comparison
from kalstream.report.page import make_report, write_report
from kalstream.report.paired import compare_runs
from kalstream.report.read import RunRecord, Window, read_run
from kalstream.report.summary import SummaryEntry, entries_of, write_summary
from kalstream.runs.lines import check_results

__all__ = [
    "RunRecord",
    "SummaryEntry",
    "Window",
    "check_results",
    "compare",
    "compare_runs",
    "entries_of",
    "make_report",
    "read_run",
    "write_comparison",
    "write_report",
    "write_summary",
]
