"""The command line: a file per command or family of commands, imported when it is called."""
