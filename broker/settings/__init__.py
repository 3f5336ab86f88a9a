"""Settings of the processes, and Kafka's configuration keys.

    processes.py      the settings of `moldau serve`, of a worker and of a router
    options.py        the table of the options of `moldau serve`, and the parsing of their values
    loading.py        reads the settings of `moldau serve` from flags, environment and a TOML file
    listeners.py      the listeners that follow from options and Kafka's keys
    secure_mode.py    the settings that `--secure` implies
    static_config.py  the broker configuration that a worker starts with
    kafka/            configuration keys of topics and brokers: declared, checked, resolved

Nothing is imported here: a router reads its settings without declaring Kafka's keys.
"""
