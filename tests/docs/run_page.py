"""Runs the Python blocks of one page, one after another as scripts, in one process: imports are paid for once.

    python run_page.py BLOCK.py ...

Prints one JSON line for each block, with its traceback if it raised. Blocks see the working folder's modules.
"""

from __future__ import annotations

import json
import runpy
import sys
import traceback
from pathlib import Path


def main() -> None:
    sys.path.insert(0, str(Path.cwd()))
    for name in sys.argv[1:]:
        fault = None
        try:
            runpy.run_path(name, run_name="__main__")
        except (Exception, SystemExit) as error:
            fault = "".join(traceback.format_exception(error))
        sys.stdout.flush()
        print("\n" + json.dumps({"block": name, "fault": fault}), file=sys.__stdout__, flush=True)


if __name__ == "__main__":
    main()
