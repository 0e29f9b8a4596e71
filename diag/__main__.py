"""`python -m diag` is `diag`."""

import sys

from diag import isolated

if __name__ == "__main__":
    isolated.restart(sys.argv[1:])
    from diag.cli import main

    sys.exit(main())
