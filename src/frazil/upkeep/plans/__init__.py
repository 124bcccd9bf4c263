"""How a table stands and what its policy asks for. Reads metadata alone; no JVM."""
