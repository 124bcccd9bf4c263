"""The log over the network: the broker (Arrow Flight), its client, and the producer."""
