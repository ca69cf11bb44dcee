"""The update: from scored trajectories to new weights.

A chain of pure functions with one stateful end: `advantages` (how good was each trajectory within its group),
`samples` (what of it is trained on), `packing` (which rank computes what, in which forward pass), `losses` (the
masked, clipped objective), and `learner` (one DeepSpeed rank that runs them and owns the weights). `ranks` keeps the
learner's processes alive as named Ray actors; `weights` and `checkpoint` are what leaves the learner.

Importing this package loads neither torch nor DeepSpeed nor Ray; its modules do.
"""
