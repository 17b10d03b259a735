"""One file per command: ``add_parser(commands)`` says what it takes, ``run(args)`` does it."""
