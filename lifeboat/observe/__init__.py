"""What observers see: the terminal event of a request, metrics, the state page, the log.

Everything shown is a function of a `GateView` or of `Finished` events; nothing here decides, and
nothing here may disturb traffic (I12).
"""
