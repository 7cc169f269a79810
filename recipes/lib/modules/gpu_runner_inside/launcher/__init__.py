"""The program that starts each rank: its place in the world, the meeting with the others, its child process."""
