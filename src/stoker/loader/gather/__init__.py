"""From places in windows to a batch: finding and copying samples, into buffers that are used again."""
