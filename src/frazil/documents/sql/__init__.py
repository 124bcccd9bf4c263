"""Documents in a SQL database: SQLite, MySQL and PostgreSQL behind one implementation."""
