"""Many connections at once, and slow ones: what a router process holds, and whether it is right."""
