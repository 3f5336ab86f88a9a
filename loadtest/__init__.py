"""Load: benchmarks that measure their own baseline, and users for locust."""
