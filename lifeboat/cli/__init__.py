"""The `lifeboat` command: one module for each group of subcommands."""
