"""Who a client is and what it may do: pure, no I/O and no clock."""
