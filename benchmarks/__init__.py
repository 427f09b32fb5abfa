"""Speed and memory as ratios against other implementations, all measured in one run."""
