"""What every coordinated state machine is made of. No I/O, no clock."""
