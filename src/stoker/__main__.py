"""`python -m stoker`: the same as the command `stoker`."""

from stoker.cli.main import main

if __name__ == "__main__":
    main()
