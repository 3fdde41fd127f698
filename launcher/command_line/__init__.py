"""Parts of the command line beside the commands: files of settings, error messages, and the command `weft run`."""
