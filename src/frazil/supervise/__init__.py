"""Several Frazil processes on one machine, as one: started in order, restarted when they die, stopped together."""
