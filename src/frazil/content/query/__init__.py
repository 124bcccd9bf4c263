"""Finding objects by what is in them: search, counts, duplicates, export. PyIceberg plans, Arrow decides, no JVM."""
