"""The state machine of share-partitions and the sessions of their readers: no I/O, no clock."""
