"""What pyarrow looks up once must be looked up before there are threads.

Without a GIL pyarrow 26 imports pandas and uuid when it first needs them, inside of a lock in which other threads wait without
letting themselves be stopped; a garbage collection in there, which stops all threads, then waits for ever.
"""

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys, threading
sys.path.insert(0, {folder!r})
import pyarrow as pa
import zephon_async.kinds

column = pa.nulls(2, pa.int64())
threads = [threading.Thread(target=column.to_numpy, kwargs=dict(zero_copy_only=False), daemon=True) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join(10) for thread in threads]
print("stuck" if any(thread.is_alive() for thread in threads) else "whole", flush=True)
import os
os._exit(0)
"""


def test_threads_find_what_pyarrow_looks_up(tmp_path: Path) -> None:
    """Here with a pandas that takes long to import, and collects garbage meanwhile."""
    (tmp_path / "pandas.py").write_text("import gc, time\ntime.sleep(0.2)\ngc.collect()\n__version__ = '0.1'\n")
    command = [sys.executable, "-c", PROGRAM.format(folder=str(tmp_path))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.stdout == "whole\n", done.stderr
