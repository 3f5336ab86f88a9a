"""The locust users of the load test, one module for each kind, and the shapes of a load.

kafka_user     the base class: a session, a schedule, how requests and violations are reported
producer, readers, group_members, transactional, admin     the users
options        the load test's own options, and where the broker is
violations     records that were lost, duplicated, reordered or damaged, for the verdict at the end
shapes         how many users there are at a time
client/        the Kafka client they are made of; imports neither locust nor gevent

`locust -f loadtest` executes every module below loadtest/ whose name does not begin with an
underscore, under its bare name and in addition to the import as moldau.loadtest.users.<name>.
Modules here may therefore define things but not register them: event listeners are in
loadtest/locustfile.py. Users that are defined under a bare name are abstract, so that each counts
once.
"""
