"""What removes: snapshots first, their files later, and files that nothing knows. And what holds them: pins."""
