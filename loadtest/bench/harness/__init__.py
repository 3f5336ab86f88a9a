"""What the benchmarks are made of: a broker to measure, clients that replay requests, figures."""
