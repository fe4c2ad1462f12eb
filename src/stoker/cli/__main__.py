"""`python -m stoker.cli`, where the script is not on the path."""

import sys

from stoker.cli import main

if __name__ == "__main__":  # build processes import this module again
    sys.exit(main())
