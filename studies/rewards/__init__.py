"""A study of rewards under instructions that fit a video, do not fit it, contradict it, or are worded differently."""
