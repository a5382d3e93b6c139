"""What CI would do: workflow text → jobs and rows. Pure; nothing here reads a file or runs a program."""
