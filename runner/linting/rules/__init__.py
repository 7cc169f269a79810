"""The rules of the eight steps: each registers itself (`script.rule`), and says of a script what it sees first."""
