"""Administration of topics: create, describe, verify, migrate, adopt."""
