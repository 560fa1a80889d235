"""`python -m tailrace_conform URL`."""

import sys

from tailrace_conform.cli import main

sys.exit(main())
