"""Settings: of processes (`processes.py`) and Kafka's configuration keys (`kafka/`)."""
