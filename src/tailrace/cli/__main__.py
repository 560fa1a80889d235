"""`python -m tailrace.cli`: the same as the `tailrace` command."""

import sys

from tailrace.cli import main

sys.exit(main())
