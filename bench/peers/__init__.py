"""What a request costs through Lifeboat and through other proxies, over one stub backend."""
