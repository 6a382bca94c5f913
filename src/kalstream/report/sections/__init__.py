"""Sections of a report, one file each; `kalstream.report.page` lists them in their order."""
