"""Held-out evaluation: pass@k, intervals, reports, and whether one policy is better than another."""

from agentfly_lib.evaluation.compare import Comparison, compare
from agentfly_lib.evaluation.evaluate import evaluate_groups, pass_ks
from agentfly_lib.evaluation.intervals import Estimate, bootstrap_interval, mean_interval, wilson_interval
from agentfly_lib.evaluation.pass_at_k import pass_at_k, pass_at_k_estimate
from agentfly_lib.evaluation.report import EvaluationMode, EvaluationReport, read_report, write_report
from agentfly_lib.evaluation.table import report_table

__all__ = [
    "Comparison",
    "Estimate",
    "EvaluationMode",
    "EvaluationReport",
    "bootstrap_interval",
    "compare",
    "evaluate_groups",
    "mean_interval",
    "pass_at_k",
    "pass_at_k_estimate",
    "pass_ks",
    "read_report",
    "report_table",
    "wilson_interval",
    "write_report",
]
