"""What the product tells about itself: logs, metrics, and how often it had to try again."""
