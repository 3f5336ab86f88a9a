"""A small Kafka client that stamps what it writes and checks what it reads.

connection        one connection that reconnects and reports every request
session           a user's connections: partition leaders, coordinators, reads of a partition
stamped           records that identify themselves, and the check of a partition as it is read
stamped_producer  writes them, and looks for them at the end
group_member      a member of a consumer group that reads, checks and commits
schedule          when requests are due

Nothing here imports locust or gevent: the sockets are plain blocking ones, which locust's monkey
patching makes cooperative. A client in C would block all other users of its process while it polls.
"""
