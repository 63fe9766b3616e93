"""The command line: one file per verb, each a thin wrapper of a library function."""
