"""The shell around `security`: users, ACLs and quotas in memory, kept in step with the store."""
