"""Kafka's classic group protocol: JoinGroup, SyncGroup, Heartbeat, LeaveGroup."""
