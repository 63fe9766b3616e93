"""``python -m quantkit`` is the command line."""

import sys

from quantkit.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
