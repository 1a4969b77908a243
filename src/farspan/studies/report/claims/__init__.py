"""Claims of the paper, judged by this study's own data."""

from farspan.studies.report.claims.language import language_claims
from farspan.studies.report.claims.probe import probe_claims
from farspan.studies.report.claims.verdicts import Claim, Finding, Verdict

__all__ = ["Claim", "Finding", "Verdict", "language_claims", "probe_claims"]
