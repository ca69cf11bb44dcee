"""Rows out of files, read in pieces whose size in memory is bounded, whatever a small file unpacks to."""

from agentfly_lib.rows.sources import SUFFIXES, Row, RowFault, plain_row, read_rows

__all__ = ["SUFFIXES", "Row", "RowFault", "plain_row", "read_rows"]
