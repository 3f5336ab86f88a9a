"""Looking at a running broker and changing it: topics, groups, status."""
