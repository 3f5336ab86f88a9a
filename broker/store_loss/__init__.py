"""What workers and the supervisor do when the store may have lost acknowledged writes."""
