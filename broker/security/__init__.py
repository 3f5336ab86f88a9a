"""Identities, authorization and quotas: who a client is and what it may do, without I/O or
clock."""
