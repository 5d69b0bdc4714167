"""Ten minutes of everything at once, against a router process, under laws that hold all along."""
