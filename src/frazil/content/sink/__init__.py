"""The content sink: merges events, observations and annotations into `content.journal` and `content.objects`."""
