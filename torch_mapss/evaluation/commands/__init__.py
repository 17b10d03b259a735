"""One module per command: ``add_options(parser)`` adds its options, ``run(args)`` runs it."""
