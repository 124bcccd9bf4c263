"""What is done to topics by hand: adopt, verify, migrate, describe."""
