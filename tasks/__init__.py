"""The steps of the flows: one library call each, plus retries, a time limit, what the page shows, and what MLflow gets.

Tasks take and return the small values of `agentfly_lib.refs`. What belongs to the whole run (its directory, its
tracker, the display) is in the session, see `tasks.session`.
"""
