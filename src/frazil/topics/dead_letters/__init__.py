"""Dead letters: messages that a sink could not write, with the reason; their list, and their replay."""
