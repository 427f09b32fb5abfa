"""`python -m tx_from_scratch`: train, translate, info."""

import sys

from tx_from_scratch.command_line import main

if __name__ == "__main__":
    sys.exit(main())
