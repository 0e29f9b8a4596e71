"""`python -m diag` is `diag`."""

import sys

from diag.launch import isolated

if __name__ == "__main__":
    isolated.restart(sys.argv[1:])
    from diag.cli.main import main

    sys.exit(main())
