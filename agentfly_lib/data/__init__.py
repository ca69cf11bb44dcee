"""Datasets in, problems out: reading, validation, splits, and the tasks we ship."""

from agentfly_lib.data.order import problems_of_step
from agentfly_lib.data.prepare import DatasetReport, load_problems, prepare_dataset, read_report
from agentfly_lib.data.validate import RESERVED_COLUMNS

__all__ = ["RESERVED_COLUMNS", "DatasetReport", "load_problems", "prepare_dataset", "problems_of_step", "read_report"]
