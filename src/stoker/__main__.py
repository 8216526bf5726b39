"""`python -m stoker`: the same as the command `stoker`."""

import sys

if not sys.flags.safe_path:  # a secrets.py of the user's in the current folder must not hide that of Python
    sys.path.append(sys.path.pop(0))

from stoker.cli.main import main

if __name__ == "__main__":
    main()
