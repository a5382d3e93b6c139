"""SSH as ~/.ssh/config says: addresses, keys, known hosts, sockets and streams."""
