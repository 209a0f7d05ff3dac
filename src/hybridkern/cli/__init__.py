"""The command line: one thin file per command, and the only code that prints."""
