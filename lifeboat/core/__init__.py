"""Decisions as synchronous functions of (state, now): no clock, no I/O, no chance of their own."""
