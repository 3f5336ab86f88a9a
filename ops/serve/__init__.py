"""`moldau serve`: the supervisor, the processes it starts and watches, the embedded store."""
