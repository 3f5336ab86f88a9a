"""Settings: those of the processes, and Kafka's configuration keys.

processes.py  what `moldau serve`, a worker and a router are configured with
options.py    the table of the options of `moldau serve`, and the parsing of their values
loading.py    the settings of `moldau serve` from flags, environment and a TOML file
kafka/        configuration keys of topics and brokers: declared, checked, resolved, described

Nothing is imported here: a router reads its settings without declaring Kafka's keys.
"""
