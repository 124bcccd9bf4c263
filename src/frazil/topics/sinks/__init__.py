"""From the log into tables, exactly once: the engine, the archive sink, and the pipeline that runs them."""
