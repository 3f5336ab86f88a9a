"""The assignors decide which member gets which partition. They are pure functions over numbers."""
