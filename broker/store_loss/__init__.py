"""What a worker does when the store may have lost acknowledged writes: see README.md."""
