"""What the users of the load test are made of: wire, stamped records, schedules, members.

Nothing here knows locust or gevent: plain blocking sockets, which locust's monkey patching turns
into cooperative ones. The users themselves are in loadtest/locustfile.py, the only module with
User classes: `locust -f loadtest` imports every module below this directory.
"""
