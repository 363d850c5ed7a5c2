"""`python -m workers.cli` is `videosieve`."""

import sys

from workers.cli.root import main

sys.exit(main())
