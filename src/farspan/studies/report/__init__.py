"""The report of a study: reads the files of `runs/<study>/`, writes page, tables and figures."""

from farspan.studies.report.assembly import ReportPaths, build

__all__ = ["ReportPaths", "build"]
