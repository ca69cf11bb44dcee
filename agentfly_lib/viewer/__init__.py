"""What people look at: the live display of a run, and trajectories as text."""
