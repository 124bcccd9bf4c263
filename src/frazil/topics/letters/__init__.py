"""Dead letters: kept with their reason, listed, and sent again."""
