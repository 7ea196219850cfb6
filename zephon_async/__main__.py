"""`python -m zephon_async` is the command `zephon-async`."""

import sys

from zephon_async.cli import main

sys.exit(main())
