"""The steps of the flows: one library call each, plus retries, a time limit, and what Prefect's page shows.

Tasks take and return the small values of `agentfly_lib.refs`. What they call is in `agentfly_lib.pipeline`, and works
on the session of their flow run, see `tasks.session`.
"""
