"""The trajectory viewer: a local page over the shards of a run, which reads only what it shows."""

from agentfly_lib.viewer.web.app import viewer_app
from agentfly_lib.viewer.web.serve import serve_viewer

__all__ = ["serve_viewer", "viewer_app"]
