"""The subcommands of `moldau` that talk to a running broker: options, and how results are shown."""
