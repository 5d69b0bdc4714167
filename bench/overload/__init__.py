"""What proxies make of twice the load that their engines can carry."""
