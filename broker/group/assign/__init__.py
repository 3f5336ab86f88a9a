"""Assignors: who shall have which partition. Pure functions over numbers, computed in slices."""
