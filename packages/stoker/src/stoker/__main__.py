"""`python -m stoker` and the command `stoker`. Signals are handled before the first large import."""

import _signal  # type: ignore[import-not-found]  # the module `signal` imports others, in which Ctrl-C would be a traceback
import sys

if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # ends the process, until `handle_stops`


def main() -> None:
    """Run a command."""
    from stoker._signals import handle_stops

    handle_stops()
    from stoker.cli.main import main

    main()


if __name__ == "__main__":
    if not sys.flags.safe_path:  # a secrets.py of the user's in the current folder must not hide that of Python
        sys.path.append(sys.path.pop(0))
    main()
