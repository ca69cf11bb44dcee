from tests.data.conftest import jsonl

__all__ = ["jsonl"]
