"""Datasets in, problems out: reading, validation, splits, and the tasks we ship."""
