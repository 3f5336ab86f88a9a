"""What the benchmarks are made of.

benchmark             what a benchmark registers: its name, its summary, how it is run
target                the broker to measure: one of its own, or a running one
measure, figures      CPU and memory of processes; medians, ranges and tables
turns                 broker and baseline in turn, repeated and summed up
replay, native_clients, group_members     clients that do as little work per request as possible
client, requests, coordinator_requests    setting up and checking; the frames that are sent
frames                                    an asyncio connection for whole frames
echo_server, forwarder                    baselines that are processes of their own
growth_report         the plots and the table of `moldau bench growth`
"""
