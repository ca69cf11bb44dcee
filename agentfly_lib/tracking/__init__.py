"""Numbers, tables and traces of a run, kept in its directory first, delivered to MLflow when it can take them."""

__all__: list[str] = []
