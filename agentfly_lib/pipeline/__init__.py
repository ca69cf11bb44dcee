"""What a flow run does, without Prefect: the session that lasts as long as it, its engines, and the order of its work.

Flows say which stage comes when, `tasks/` tries them again and shows them; what a stage does, and what several stages
share (the run directory, engines and learner, the clock of a step), is here.
"""
