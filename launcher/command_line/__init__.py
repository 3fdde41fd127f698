"""Parts of the command line: subcommands, files and sources of settings, error messages, and the command `weft run`."""
