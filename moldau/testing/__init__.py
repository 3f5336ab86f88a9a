"""A Kafka for tests: real processes, ready in about a second, gone afterwards.

    from moldau.testing import broker

    with broker() as kafka:
        producer = Producer(kafka.client_config())
        topic = kafka.topic(partitions=3)
        ...
        kafka.kill_worker()                     # what a mock cannot do
        assert kafka.consume(topic, 2) == [b"a", b"b"]

With pytest the fixtures `moldau` (one broker for the session), `moldau_function` (one for the test)
and `moldau_secure` (one with TLS, users and ACLs, for the session) need no import: see plugin.py.

    running.py          the broker of a test: topics, records, faults
    serve.py            its processes: wait until they are ready, signal them, stop them
    ports.py            free ports in a row
    topics.py           topics, records and lag, without a client library
    client_settings.py  settings for librdkafka, kafka-python, aiokafka and Java
"""

from moldau.testing.running import Broker, broker
from moldau.testing.serve import BrokerFailed
from moldau.testing.topics import Record

__all__ = ["Broker", "BrokerFailed", "Record", "broker"]
