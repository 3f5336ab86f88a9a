"""The handlers of private requests: a module for each (broker/private/)."""
