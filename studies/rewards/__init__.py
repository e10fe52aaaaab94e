"""What rewards say about instructions that fit a video, do not, contradict it, or are worded otherwise."""
